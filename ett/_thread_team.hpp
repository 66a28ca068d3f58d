// Threads that do the parts of one task at a time, the caller among them. They live as long as the team.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace ett {

class ThreadTeam {
 public:
  explicit ThreadTeam(size_t num_threads) {
    try {
      for (size_t i = 1; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {  // no more threads here: those that there are do it
    }
  }
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;
  ~ThreadTeam() {
    {
      std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    begun_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  size_t size() const { return threads_.size() + 1; }

  // Call part(i) for each i below `count`, in any order; returns when all are done, or throws what one of them threw.
  void each(size_t count, std::function<void(size_t)> part) {
    if (threads_.empty() || count < 2) {
      for (size_t i = 0; i < count; ++i) part(i);
      return;
    }
    {
      std::lock_guard lock(mutex_);
      part_ = std::move(part), count_ = count, next_ = 0, num_working_ = threads_.size(), failure_ = nullptr;
      ++task_;
    }
    begun_.notify_all();
    take_parts();
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return num_working_ == 0; });
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable begun_, done_;
  std::function<void(size_t)> part_;
  std::atomic<size_t> next_{0};
  size_t count_ = 0, num_working_ = 0, task_ = 0;
  bool is_over_ = false;
  std::exception_ptr failure_;

  void take_parts() {
    try {
      for (size_t i; (i = next_.fetch_add(1)) < count_;) part_(i);
    } catch (...) {
      std::lock_guard lock(mutex_);
      failure_ = std::current_exception();
    }
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (size_t seen = 0;;) {
      begun_.wait(lock, [&] { return is_over_ || task_ != seen; });
      if (is_over_) return;
      seen = task_;
      lock.unlock();
      take_parts();
      lock.lock();
      if (--num_working_ == 0) done_.notify_one();
    }
  }
};

}  // namespace ett
