// SPDX-License-Identifier: Apache-2.0
#include "shim/control/plan_selector.h"

#include <algorithm>
#include <utility>

#include "base/config.h"
#include "base/log.h"
#include "planner/model/options.h"
#include "shim/control/lane_factors.h"
#include "shim/control/networks.h"
#include "shim/control/plan_choice.h"
#include "shim/control/split_plan.h"
#include "shim/cuda/event_pool.h"
#include "shim/settings/optimizer.h"

namespace deft::director {
namespace {

constexpr std::size_t kMaxPlans = 16;  // remembered
// Lanes cost memory, and a profile grows old: a plan is made no earlier than this before the end of
// the warm-up.
constexpr double kPlanAheadMs = 60'000;
// A network that NCCL does not know fails every time; a link that is just down may come back.
constexpr std::uint32_t kNetworkTries = 2;
constexpr std::uint64_t kNetworkRetry = 1'000'000'000;  // nanoseconds
// Plans that are too dear, one after another, each of lower caps.
constexpr std::uint32_t kMostTries = 32;
// NCCL enqueues the calls of a nonblocking communicator later, so that no event can be recorded
// behind them.
constexpr const char* kUntimed =
    "no call of the job's has been timed yet (a nonblocking communicator's never is)";
constexpr const char* kShardsAlone =
    "gradients travel by reduce-scatter (FSDP or a distributed optimizer), which nothing but other "
    "networks would help (DEFT_LANES)";
constexpr const char* kShardsGainNothing =
    "gradients travel by reduce-scatter (FSDP or a distributed optimizer), and other networks "
    "would not help";
constexpr const char* kHalvesOfMore =
    "DEFT_PLAN=dear is carried out between two ranks only: of more, NCCL adds the halves of a sum "
    "in another order than the whole, and the job's bits would change";
constexpr const char* kNoMemory =
    "a plan that delays or merges needs more memory than DEFT_MAX_SHADOW_BYTES allows";

void neither_late_nor_merged(Settings& settings, const char* why) {
    settings.max_delay = 0;
    settings.max_merge = 1;
    settings.limited = why;
    settings.unmeasured = false;  // to know it would change nothing
}

bool untimed(const Track& track) {
    const CallTimes* const profile = track.current_profile();
    const auto never = [](const CallTimes::Place& place) { return place.ready_ms.count() == 0; };
    return profile == nullptr ||
           std::all_of(profile->places().begin(), profile->places().end(), never);
}

// Once for each process that leads: who has asked for more should know why there is none.
void say_untrusted() {
    const char* const why = untrusted();
    if (why == nullptr) {
        return;
    }
    const Config& config = Config::process();
    const std::string plan =
        config.is(Key::Plan, "auto") ? "" : ", without DEFT_PLAN=" + config.text(Key::Plan);
    DEFT_WARN_ONCE(
        "DEFT_MODE=%s does what exact does%s: %s; if they are, set "
        "DEFT_GRADIENTS=trust on all ranks (docs/accuracy.md says which jobs that ruins), or let "
        "deft's companion watch a PyTorch job (docs/companion.md)",
        config.text(Key::Mode).c_str(), plan.c_str(), why);
}

// False if DEFT_MAX_SHADOW_BYTES does not allow the leader's plan.
bool has_memory_for(const planner::Plan& plan, const JobView& view) {
    const Settings settings = Settings::process();
    executor::CompileOptions compile = compile_options(settings, choose_prediction(plan));
    compile.lanes = static_cast<std::uint32_t>(lanes_of(plan));
    std::string problem;  // for the staging to tell
    const executor::Script script = executor::compile(plan, shapes_of(view), compile, problem);
    return script.shadow_bytes <= settings.max_shadow_bytes;
}

// Cut by what networks take, whatever else the calls do.
bool splits(const JobView& view, const planner::Profile& profile) {
    return view.series == Series::Shards || view.untimed ||
           std::none_of(profile.buckets.begin(), profile.buckets.end(),
                        [](const planner::Bucket& bucket) { return bucket.transfer.measured(); });
}

// Lanes cost memory: none are made for a job that not even a network without any cost would help.
bool may_gain_by_networks(const JobView& view, const planner::Profile& profile,
                          const Settings& allowed) {
    planner::Link own;
    own.name = "own";
    planner::Link ideal;
    ideal.name = "ideal";
    ideal.cost.beta = 1e-15;
    std::string note;
    const planner::Plan best = PlanSelector::plan_for(view, profile, {own, ideal}, allowed, note);
    return best.predicted.verdict == planner::Verdict::Use;
}

}  // namespace

PlanSelector::PlanSelector(const CommunicatorInfo& info, const PlanSwitch& plan_switch,
                           const LaneSet& lanes, Follower& follower)
    : serial_(info.serial),
      nranks_(info.nranks),
      switch_(plan_switch),
      lanes_(lanes),
      follower_(follower),
      networks_backoff_(kNetworkRetry, kNetworkRetry) {}

planner::Plan PlanSelector::plan_for(const JobView& view, const planner::Profile& profile,
                                     const std::vector<planner::Link>& networks,
                                     const Settings& settings, std::string& note) {
    return splits(view, profile)
               ? choose_split_plan(view.series, profile, networks, settings.forced_merge > 0, note)
               : choose_plan(profile, networks, settings, note);
}

planner::Fabric PlanSelector::fabric_for(const JobView& view, const planner::Profile& profile,
                                         const std::vector<planner::Link>& networks) {
    return splits(view, profile) ? split_fabric(view.series, profile, networks)
                                 : fabric_of(profile, networks);
}

bool PlanSelector::due(const JobView& view) const {
    const char* const doubt = doubts_.of(view, optimizer_);
    const bool cheaper = dearest_ > 0 && (!steps_ || steps_->rate_curvature <= dearest_);
    const bool changed = view.signature != signature_ || cheaper ||
                         !optimizer_.same_kind(known_optimizer()) || doubts_.changed(view, doubt);
    return changed && cuda::host_now() >= retry_at_ns_;
}

void PlanSelector::select_anew_after(std::uint64_t pause_ns) {
    signature_ = 0;
    retry_at_ns_ = cuda::host_now() + static_cast<std::int64_t>(pause_ns);
}

bool PlanSelector::select(const Track& track, const JobView& view) {
    if (view.series == Series::Sums && view.beside == nullptr) {
        say_untrusted();  // else no mode would do more
    }
    note_optimizer();
    signature_ = 0;
    cuts_ = view.nranks <= 2;
    decide_about_doubts(view);
    const Plans::iterator known = find_known(view);
    if (profile_stale_) {  // taken under a plan that is forgotten
        return false;
    }
    if (known != plans_.end()) {
        return take_known(view, known->second);
    }
    const bool split_untimed = view.untimed && !lanes_.other_networks().empty();
    if (!view.measured && !split_untimed) {
        if (follower_.reason().empty() && untimed(track)) {
            follower_.note_reason(kUntimed);  // for the report; most are timed soon
        }
        return false;
    }
    signature_ = view.signature;
    // Every plan of covap's merges; one that is named is the only one there is.
    const Settings set = Settings::process();
    const bool named = set.forced_merge > 1 || set.forced_delay > 0;  // one that keeps no numbers
    if (doubts_.latest() != nullptr && (set.mode == ShimMode::Covap || named)) {
        follower_.say(doubts_.latest());
        return false;
    }
    profile_ = view_job(track, serial_, true).profile;
    scale_transfers(profile_, taken_.signature == view.signature ? taken_.factor : 1);
    if (too_early(view)) {
        return false;
    }
    only_networks_ =
        wants_networks() && (view.untimed || may_gain_by_networks(view, profile_, allowed()));
    if (only_networks_) {
        follower_.set_plan({});
        return true;
    }
    return choose(view);
}

void PlanSelector::note_optimizer() {
    const executor::Optimizer known = known_optimizer();
    if (optimizer_.same_kind(known)) {
        return;
    }
    optimizer_ = known;
    // Plans were made for another one, which may bear more. What was measured since may be under
    // one of them.
    if (!plans_.empty() && follower_.facts().switched > 0) {
        profile_stale_ = true;
    }
    plans_.clear();
}

// Plans were made without, or need it.
void PlanSelector::note_layers(Unproven unproven) {
    const bool before = std::exchange(layers_, unproven.layers);
    if (!layers_) {
        const char* const why = told_.keep(std::move(unproven.why));
        why_no_layers_ = why != nullptr ? why : "layers do not wait for their own gradients";
    }
    if (layers_ == before) {
        return;
    }
    DEFT_INFO("%s", layers_ ? "on all ranks layers wait for their own gradients" : why_no_layers_);
    if (!plans_.empty() && follower_.facts().switched > 0) {
        profile_stale_ = true;
    }
    plans_.clear();
    signature_ = 0;
}

void PlanSelector::decide_about_doubts(const JobView& view) {
    const bool passed = doubts_.decide(view, optimizer_);
    if (follower_.reason() == kUntimed || passed) {
        follower_.note_reason("");
    }
}

PlanSelector::Plans::iterator PlanSelector::find_known(const JobView& view) {
    const auto known = plans_.find(view.signature);
    if (known == plans_.end()) {
        return known;
    }
    const bool dear = priced_out(known->second.plan) != nullptr;
    if (!dear && (doubts_.latest() != nullptr || known->second.sure)) {
        return known;
    }
    plans_.erase(known);  // made in a doubt that has passed, or for another learning rate
    if (follower_.facts().switched > 0) {
        profile_stale_ = true;
    }
    return plans_.end();
}

// The cycle was interrupted and has come back. Its times are those under the plan now.
bool PlanSelector::take_known(const JobView& view, const Made& known) {
    signature_ = view.signature;
    if (doubts_.latest() != nullptr &&
        (Settings::process().mode == ShimMode::Covap || known.plan.predicted.late_or_merged())) {
        // Made without that doubt, which may pass: it waits, and nothing takes its place.
        follower_.say(doubts_.latest());
        return false;
    }
    follower_.set_plan(known.plan);
    profile_ = known.profile;
    before_ = known.before;
    reestimated_ = known.reestimated;
    return true;
}

bool PlanSelector::too_early(const JobView& view) {
    const double left_ms = warm_up_left_ms(view);
    if (left_ms <= kPlanAheadMs) {
        return false;
    }
    const double wait_ms = std::min(left_ms - kPlanAheadMs / 2, kPlanAheadMs / 4);
    select_anew_after(static_cast<std::uint64_t>(wait_ms * 1e6));
    return true;
}

// How long the job goes on before DEFT_WARMUP iterations are over, at its present pace.
double PlanSelector::warm_up_left_ms(const JobView& view) const {
    const std::uint64_t length = std::max<std::size_t>(view.gradients.size(), 1);
    const std::uint64_t done = switch_.calls() / length;
    const std::uint64_t wanted = Settings::process().warm_up;
    return wanted > done ? static_cast<double>(wanted - done) * profile_.iteration.median * 1e3 : 0;
}

bool PlanSelector::wants_networks() const {
    return !networks_off_ && networks_.empty() && !lanes_.other_networks().empty() &&
           lanes_.obstacle().empty();
}

bool PlanSelector::choose(const JobView& view) {
    std::string note;
    for (std::size_t i = 0; i < networks_.size() && taken_.signature == 0; ++i) {
        networks_[i].cost.beta =
            fastest_per_byte(networks_[i].name, nranks_, networks_[i].cost.beta);
    }
    Settings settings = allowed();
    settings.trial = layers_;
    if (layers_ && settings.policy == "dear" && !settings.halves()) {
        DEFT_WARN_ONCE("%s", kHalvesOfMore);
        follower_.note_reason(kHalvesOfMore);
        return false;
    }
    planner::Plan plan = plan_for(view, profile_, networks_, settings, note);
    const char* const dear = keep_within_price(view, settings, plan, note);
    if (dear != nullptr && plan.predicted.late_or_merged()) {  // covap's always is
        follower_.say(dear);
        return false;
    }
    const bool no_memory = settings.mode == ShimMode::Deft && settings.forced_merge == 0 &&
                           plan.predicted.verdict == planner::Verdict::Use &&
                           !has_memory_for(plan, view);
    if (no_memory) {  // what every call delivers itself needs none
        neither_late_nor_merged(settings, kNoMemory);
        plan = choose_plan(profile_, networks_, settings, note);
    }
    follower_.set_plan(plan);
    reestimated_ = false;
    before_ = profile_.iteration;
    if (plan.predicted.verdict != planner::Verdict::Use) {
        DEFT_INFO("do nothing: no plan gains more than the noise (%s)", note.c_str());
        if (view.series == Series::Shards) {
            follower_.note_reason(networks_.size() < 2 ? kShardsAlone : kShardsGainNothing);
        } else if (doubts_.latest() != nullptr || no_memory || dear != nullptr) {
            follower_.note_reason(settings.limited);  // in the note; this is for the report
        } else if (const char* const why = untrusted()) {
            follower_.note_reason(why);
        }
        return false;
    }
    DEFT_INFO("plan: %s", note.c_str());
    say_unpriced(plan);
    if (plans_.size() < kMaxPlans) {
        plans_[view.signature] = {std::move(plan), profile_, before_, doubts_.latest() == nullptr};
    }
    return true;
}

void PlanSelector::say_unpriced(const planner::Plan& plan) const {
    const std::string why =
        not_priced(plan, steps_.has_value(), Settings::process().forced_merge > 0);
    if (!why.empty()) {
        DEFT_INFO("%s (docs/companion.md)", why.c_str());
    }
}

const char* PlanSelector::priced_out(const planner::Plan& plan) {
    if (!steps_ || !plan.predicted.late_or_merged() || Settings::process().forced_merge > 0) {
        return nullptr;
    }
    const double bound = prices_.bound(plan, known_optimizer(), choose_prediction(plan));
    return steps_->rate_curvature <= bound
               ? nullptr
               : told_.keep(too_dear(plan.predicted, steps_->rate_curvature, bound));
}

// Lowers the caps until the job's steps bear the plan. Why it is not the first one; null: it is.
const char* PlanSelector::keep_within_price(const JobView& view, Settings& settings,
                                            planner::Plan& plan, std::string& note) {
    dearest_ = 0;
    const char* first = nullptr;
    for (std::uint32_t tries = 0; tries < kMostTries; ++tries) {
        const char* const why = priced_out(plan);
        if (why == nullptr) {
            break;
        }
        dearest_ =
            std::max(dearest_, prices_.bound(plan, known_optimizer(), choose_prediction(plan)));
        if (first == nullptr) {
            first = why;
            const bool new_one = !std::exchange(price_said_, true);
            log::write(new_one ? log::Level::Warn : log::Level::Info,
                       "a plan is not taken: %s (docs/companion.md)", why);
        }
        if (!lower_caps(plan.predicted, settings)) {
            break;
        }
        settings.limited = why;
        settings.unmeasured = false;
        plan = plan_for(view, profile_, networks_, settings, note);
    }
    return first;
}

void PlanSelector::put_prices(Settings& settings) {
    if (steps_ && steps_->noise_scale >= 0) {
        settings.noise_scale = steps_->noise_scale;
    }
    planner::Plan late;
    late.predicted.max_delay = 1;
    const executor::Prediction prediction = choose_prediction(late);
    if (!settings.age_price_named) {
        settings.age_price = PlanPrices::assumed_age_price(known_optimizer(), prediction);
    }
    const double measured =
        steps_ ? prices_.age_price(steps_->rate_curvature, known_optimizer(), prediction) : 0;
    if (steps_ && measured <= planner::kAgePrice) {  // else its bound decides, and says so
        settings.age_price = measured;
    }
}

Settings PlanSelector::allowed() {
    Settings settings = Settings::process();
    if (doubts_.latest() != nullptr) {
        neither_late_nor_merged(settings, doubts_.latest());
    }
    settings.layers = layers_;
    settings.lane_start = lane_.start;
    settings.lane_per_byte = lane_.per_byte;
    settings.cuts = cuts_;
    put_prices(settings);
    return settings;
}

// All ranks have them. The leader's figures count; an all-reduce takes as long on every rank.
void PlanSelector::networks_measured(const std::vector<executor::LaneSpeed>& speeds) {
    networks_ = measured_links(speeds, lanes_.other_networks());
    for (const planner::Link& link : networks_) {
        DEFT_INFO("lane %s: %.3f GB/s, starts within %.0f us", link.name.c_str(),
                  1e-9 / link.cost.beta, link.cost.alpha * 1e6);
        (void)fastest_per_byte(link.name, nranks_, link.cost.beta);
    }
    only_networks_ = false;
    networks_off_ = networks_.size() < 2;
    profile_stale_ = true;
    signature_ = 0;  // now the plan
}

void PlanSelector::lane_measured(const executor::LaneSpeed& speed) {
    if (speed.per_byte > 0 && lane_.per_byte == 0) {
        DEFT_INFO("a lane over the job's network: %.3f GB/s, starts within %.0f us",
                  1e-9 / speed.per_byte, speed.start * 1e6);
        lane_ = speed;
    }
}

// Plans are made for the job's own network if the others cannot be had.
void PlanSelector::networks_refused(const Problem& problem) {
    only_networks_ = false;
    profile_stale_ = true;
    select_anew_after(networks_backoff_.failed());
    if (problem.may_pass && networks_backoff_.failures() < kNetworkTries) {
        return;
    }
    networks_off_ = true;
    DEFT_WARN("DEFT_LANES: %s; the job's own network is used alone", problem.why.c_str());
}

// The job's own network may still bear a plan.
void PlanSelector::drop_networks() {
    DEFT_INFO("the networks of DEFT_LANES are not used any more");
    networks_.clear();
    networks_off_ = true;
    plans_.clear();
    signature_ = 0;
}

void PlanSelector::note_taken(std::uint64_t signature, const std::vector<double>& factors) {
    if (factors.empty()) {
        return;
    }
    planner::Profile none;
    apply(factors, none, networks_);
    taken_ = {signature, factors.front() * (taken_.signature == signature ? taken_.factor : 1)};
}

void PlanSelector::note_unfit(const Problem& problem, std::uint64_t signature) {
    doubts_.note_unfit(problem, signature);
    plans_.erase(signature);
    if (follower_.facts().switched > 0) {
        profile_stale_ = true;  // taken under that plan, maybe
    }
    signature_ = 0;
}

void PlanSelector::note_in_force() {
    if (follower_.plan().predicted.late_or_merged()) {
        doubts_.note_fit();
    }
}

void PlanSelector::note_outdated() {
    signature_ = 0;
    if (const executor::Optimizer known = known_optimizer(); !optimizer_.same_kind(known)) {
        optimizer_ = known;
        plans_.clear();
    }
}

void PlanSelector::remember(std::uint64_t signature, planner::Plan plan,
                            const planner::Profile& profile) {
    plans_[signature] = {std::move(plan), profile, before_, true, reestimated_};
}

// Once for the cycle, however often another one interrupts it.
void PlanSelector::set_reestimated(bool reestimated) {
    reestimated_ = reestimated;
    if (const auto known = plans_.find(signature_); known != plans_.end()) {
        known->second.reestimated = reestimated;
    }
}

void PlanSelector::replace_remembered(const planner::Plan& plan) {
    if (const auto known = plans_.find(signature_); known != plans_.end()) {
        known->second.plan = plan;
    }
}

void PlanSelector::forget() noexcept {
    plans_.clear();
    profile_ = {};
    networks_ = {};
}

}  // namespace deft::director
