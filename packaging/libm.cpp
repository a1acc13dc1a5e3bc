// SPDX-License-Identifier: Apache-2.0
// The few functions of libm that the planner, libstdc++'s from_chars and the portable command use,
// fetched when the first of them is called. Needing libm outright would map and relocate it into
// every process of a job's tree, shells and scripts included: a third of what the preload cost them
// (perf/preload/startup).
//
// Hidden by exports.map, so the library's own calls end here and nobody else's do. The names are
// the C library's; <cmath> is not included because it declares them otherwise. glibc keeps
// libm.so.6 beside libc.so.6 at all times; were it missing, results are NaN, which no plan's check
// accepts.
//
// Threads: any; the look-up may run twice and finds the same. Never from a signal handler.
#include <dlfcn.h>

#include <atomic>
#include <limits>

namespace {

void* symbol(const char* name) noexcept {
    // Never closed: the functions are kept.
    static void* const library = ::dlopen("libm.so.6", RTLD_LAZY | RTLD_LOCAL);
    return library != nullptr ? ::dlsym(library, name) : nullptr;
}

template <class Result, class... Arguments>
class Function {
public:
    constexpr explicit Function(const char* name) : name_(name) {}

    Result operator()(Result otherwise, Arguments... arguments) noexcept {
        auto* address = address_.load(std::memory_order_acquire);
        if (address == nullptr) {
            address = reinterpret_cast<Result (*)(Arguments...)>(symbol(name_));
            if (address == nullptr) {
                return otherwise;
            }
            address_.store(address, std::memory_order_release);
        }
        return address(arguments...);
    }

private:
    const char* name_;
    std::atomic<Result (*)(Arguments...)> address_{nullptr};
};

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

constinit Function<double, double> exp_function("exp");
constinit Function<double, double> log_function("log");
constinit Function<double, double> exp2_function("exp2");
constinit Function<double, double> log2_function("log2");
constinit Function<double, double> erf_function("erf");
constinit Function<double, double> sqrt_function("sqrt");
constinit Function<double, double, double> pow_function("pow");
constinit Function<double, double, double> hypot_function("hypot");
constinit Function<long, double> lround_function("lround");
constinit Function<long long, double> llround_function("llround");
constinit Function<int> fegetround_function("fegetround");
constinit Function<int, int> fesetround_function("fesetround");

}  // namespace

extern "C" {

double exp(double x) noexcept {
    return exp_function(kNaN, x);
}
double log(double x) noexcept {
    return log_function(kNaN, x);
}
double exp2(double x) noexcept {
    return exp2_function(kNaN, x);
}
double log2(double x) noexcept {
    return log2_function(kNaN, x);
}
double erf(double x) noexcept {
    return erf_function(kNaN, x);
}
double sqrt(double x) noexcept {
    return sqrt_function(kNaN, x);
}
double pow(double x, double y) noexcept {
    return pow_function(kNaN, x, y);
}
double hypot(double x, double y) noexcept {
    return hypot_function(kNaN, x, y);
}
long lround(double x) noexcept {
    return lround_function(0, x);
}
long long llround(double x) noexcept {
    return llround_function(0, x);
}
int fegetround() noexcept {
    return fegetround_function(0);
}
int fesetround(int mode) noexcept {
    return fesetround_function(0, mode);
}

}  // extern "C"
