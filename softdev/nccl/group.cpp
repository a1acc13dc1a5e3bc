// SPDX-License-Identifier: Apache-2.0
#include "softdev/nccl/group.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <vector>

#include "softdev/cuda/softdev.h"
#include "softdev/nccl/env.h"
#include "softdev/nccl/error.h"
#include "softdev/nccl/log.h"

namespace softdev::nccl {
namespace {

struct Content {
    std::vector<Task> tasks;
    std::vector<Job> jobs;

    std::vector<std::shared_ptr<Communicator>> communicators() const {
        std::vector<std::shared_ptr<Communicator>> all;
        const auto add = [&](const std::shared_ptr<Communicator>& c) {
            if (std::find(all.begin(), all.end(), c) == all.end()) {
                all.push_back(c);
            }
        };
        for (const Job& job : jobs) {
            add(job.communicator);
        }
        for (const Task& task : tasks) {
            add(task.communicator);
        }
        return all;
    }
};

struct Group {
    int depth = 0;
    int device = -1;  // current when the group began: the thread's own state may be gone at its end
    ncclResult_t error = ncclSuccess;
    Content content;
    std::vector<std::shared_ptr<Communicator>> aborts;

    ~Group() {
        if (depth > 0) {
            softdevReportOn(
                device,
                "nccl: a thread ended inside %d ncclGroupStart without ncclGroupEnd (%zu calls "
                "dropped)",
                depth, content.tasks.size() + content.jobs.size());
        }
    }
};

thread_local Group t_group;

// The application's thread keeps the device it has chosen, whatever a job does on it.
class KeepsContext {
public:
    KeepsContext() { cuCtxGetCurrent(&before_); }
    KeepsContext(const KeepsContext&) = delete;
    ~KeepsContext() { cuCtxSetCurrent(before_); }

private:
    CUcontext before_ = nullptr;
};

bool single_jobs_on_caller() {
    static const bool yes = nccl_version() >= 22800;
    return yes;
}

void run_jobs(std::vector<Job>& jobs) {
    // As in NCCL: a single one on the calling thread (from 2.28 on), several on threads of their
    // own.
    if (jobs.size() == 1 && (single_jobs_on_caller() || jobs[0].on_caller)) {
        const KeepsContext keeps;
        jobs[0].run();
        jobs[0].good = true;
        return;
    }
    std::vector<std::exception_ptr> errors(jobs.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < jobs.size(); ++i) {
        threads.emplace_back([&, i] {
            try {
                jobs[i].run();
            } catch (...) {
                errors[i] = std::current_exception();
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    for (size_t i = 0; i < jobs.size(); ++i) {
        jobs[i].good = errors[i] == nullptr;
    }
    for (const std::exception_ptr& error : errors) {
        if (error != nullptr) {
            std::rethrow_exception(error);
        }
    }
}

void run_tasks(std::vector<Task>& tasks) {
    std::vector<std::pair<std::shared_ptr<Communicator>, std::vector<Task>>> by_communicator;
    for (Task& task : tasks) {
        const auto found =
            std::find_if(by_communicator.begin(), by_communicator.end(),
                         [&](const auto& entry) { return entry.first == task.communicator; });
        if (found == by_communicator.end()) {
            by_communicator.push_back({task.communicator, {task}});
        } else {
            found->second.push_back(task);
        }
    }
    // Communicators start in the order of their hashes, equal on all ranks.
    std::stable_sort(by_communicator.begin(), by_communicator.end(),
                     [](const auto& a, const auto& b) { return a.first->hash < b.first->hash; });
    std::vector<Launch> launches;
    std::vector<std::shared_ptr<Service::Batch>> batches;
    for (auto& [communicator, own] : by_communicator) {
        if (communicator->ended()) {
            throw Error(ncclInvalidArgument,
                        communicator->name() + " was destroyed before ncclGroupEnd");
        }
        launches.emplace_back(communicator, std::move(own));
    }
    for (size_t i = 0; i < launches.size(); ++i) {
        const auto wishes = launches[i].wishes();
        batches.push_back(wishes.empty() ? nullptr
                                         : by_communicator[i].first->begin_connect(wishes));
        if (batches.back() != nullptr) {
            by_communicator[i].first->check().entering(launches[i].label());
        }
    }
    std::exception_ptr first;
    for (size_t i = 0; i < launches.size(); ++i) {
        try {
            by_communicator[i].first->finish_connect(batches[i]);
        } catch (...) {
            first = first ? first : std::current_exception();
        }
        if (batches[i] != nullptr) {
            by_communicator[i].first->check().entering("");
        }
    }
    if (first) {
        std::rethrow_exception(first);
    }
    for (Launch& launch : launches) {
        launch.start();
    }
}

// While one lives; then those that the group has aborted come to their end, whatever became of the
// rest of the group. One waits for the operations of another, so all at once.
class Aborts {
public:
    explicit Aborts(std::vector<std::shared_ptr<Communicator>> communicators)
        : communicators_(std::move(communicators)) {}
    Aborts(const Aborts&) = delete;
    ~Aborts() {
        std::vector<std::thread> threads;
        for (const auto& communicator : communicators_) {
            threads.emplace_back([&communicator] { communicator->reclaim(); });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
    }

private:
    const std::vector<std::shared_ptr<Communicator>> communicators_;
};

void finish_jobs(std::vector<Job>& jobs) {
    for (Job& job : jobs) {
        if (job.after) {
            job.after(job.good);
        }
    }
}

void execute(Content& content) {
    run_jobs(content.jobs);
    run_tasks(content.tasks);
}

// Counts the caller as inside the communicators, so that an abort waits until it has left.
class Inside {
public:
    explicit Inside(std::vector<std::shared_ptr<Communicator>> communicators)
        : communicators_(std::move(communicators)) {
        for (auto& c : communicators_) {
            c->users.fetch_add(1);
        }
    }
    ~Inside() {
        for (auto& c : communicators_) {
            c->users.fetch_sub(1);
            c->idle.ring();
        }
    }

private:
    std::vector<std::shared_ptr<Communicator>> communicators_;
};

ncclResult_t start_in_background(Content content) {
    auto communicators = content.communicators();
    for (auto& c : communicators) {
        c->set_in_progress();
    }
    auto inside = std::make_unique<Inside>(communicators);
    std::thread([content = std::move(content), communicators,
                 inside = std::move(inside)]() mutable {
        ncclResult_t result = ncclSuccess;
        try {
            execute(content);
        } catch (const Error& error) {
            log_warn("%s", error.what());
            result = error.code();
        } catch (const std::exception& error) {
            log_warn("%s", error.what());
            result = ncclSystemError;
        }
        inside.reset();
        finish_jobs(content.jobs);
        for (auto& c : communicators) {
            c->set_result(result);
        }
        content = {};
    }).detach();
    return ncclInProgress;
}

ncclResult_t run_group(Content content) {
    const auto communicators = content.communicators();
    if (communicators.empty()) {
        return ncclSuccess;
    }
    const bool blocking = communicators[0]->config.blocking;
    for (const auto& c : communicators) {
        if (c->config.blocking != blocking) {
            throw Error(
                ncclInvalidArgument,
                "Blocking and nonblocking communicators are not allowed in the same group.");
        }
    }
    if (!blocking) {
        return start_in_background(std::move(content));
    }
    std::exception_ptr failure;
    {
        const Inside inside(communicators);
        try {
            execute(content);
        } catch (...) {
            failure = std::current_exception();
        }
    }
    finish_jobs(content.jobs);
    if (failure) {
        std::rethrow_exception(failure);
    }
    return ncclSuccess;
}

}  // namespace

void on_job_thread(const std::function<void()>& job) {
    if (single_jobs_on_caller()) {
        const KeepsContext keeps;
        job();
    } else {
        std::thread(job).join();
    }
}

int group_depth() {
    return t_group.depth;
}

void group_start() {
    if (t_group.depth++ == 0) {
        t_group.device = softdevCurrentDevice();
    }
}

void group_note_error(ncclResult_t code) {
    if (t_group.depth > 0 && t_group.error == ncclSuccess) {
        t_group.error = code;
    }
}

void group_add(Task task) {
    t_group.content.tasks.push_back(std::move(task));
}

void group_add(Job job) {
    t_group.content.jobs.push_back(std::move(job));
}

void group_add_abort(std::shared_ptr<Communicator> communicator) {
    t_group.aborts.push_back(std::move(communicator));
}

size_t group_queued(const Communicator* communicator) {
    return static_cast<size_t>(
        std::count_if(t_group.content.tasks.begin(), t_group.content.tasks.end(),
                      [&](const Task& task) { return task.communicator.get() == communicator; }));
}

ncclResult_t group_simulate_end(ncclSimInfo_t* info) {
    if (t_group.depth == 0) {
        softdevReport("nccl: ncclGroupSimulateEnd without ncclGroupStart");
        throw Error(ncclInvalidUsage, "ncclGroupSimulateEnd: not in a group call.");
    }
    if (--t_group.depth > 0) {
        return ncclSuccess;
    }
    const Aborts aborts(std::exchange(t_group.aborts, {}));
    Content content = std::exchange(t_group.content, {});
    const ncclResult_t error = std::exchange(t_group.error, ncclSuccess);
    if (info != nullptr && info->magic != 0x74685283) {  // ends the group all the same, as in NCCL
        finish_jobs(content.jobs);
        throw Error(ncclInvalidArgument,
                    "ncclSimInfo_t argument not initialized via NCCL_SIM_INFO_INITIALIZER");
    }
    float total = content.tasks.empty() ? NCCL_UNDEF_FLOAT : 0;
    for (const Task& task : content.tasks) {
        // A rough model: 50 us and 1 GB/s.
        total += 50.0f + static_cast<float>(task.count * type_size(task.type)) * 1e-3f;
    }
    if (info != nullptr) {
        info->estimatedTime = total;
    }
    if (error != ncclSuccess) {
        finish_jobs(content.jobs);
        return error;
    }
    // What makes or ends communicators is carried out, in NCCL too: only launches are simulated,
    // and those only where there is something to fill in.
    if (info != nullptr) {
        content.tasks.clear();
    }
    return run_group(std::move(content));
}

ncclResult_t group_end() {
    if (t_group.depth == 0) {
        softdevReport("nccl: ncclGroupEnd without ncclGroupStart");
        throw Error(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
    }
    if (--t_group.depth > 0) {
        return ncclSuccess;
    }
    const Aborts aborts(std::exchange(t_group.aborts, {}));
    Content content = std::exchange(t_group.content, {});
    const ncclResult_t error = std::exchange(t_group.error, ncclSuccess);
    if (error != ncclSuccess) {
        finish_jobs(content.jobs);
        return error;  // said when it happened
    }
    return run_group(std::move(content));
}

}  // namespace softdev::nccl
