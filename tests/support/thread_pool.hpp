// Threads that live as long as their executor: the caller is number 0, the others wait for the next launch.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace support {

class thread_pool {
public:
  explicit thread_pool(std::uint32_t threads) {
    for (std::uint32_t number = 1; number < threads; ++number) {
      threads_.emplace_back([this, number] { serve(number); });
    }
  }
  thread_pool(thread_pool const&) = delete;
  thread_pool& operator=(thread_pool const&) = delete;
  ~thread_pool() {
    {
      std::lock_guard<std::mutex> const lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  // body(number) on every thread; returns when all have returned.
  void run(std::function<void(std::uint32_t)> const& body) {
    {
      std::lock_guard<std::mutex> const lock(mutex_);
      body_ = &body;
      running_ = threads_.size();
      ++launch_;
    }
    wake_.notify_all();
    body(0);
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [&] { return running_ == 0; });
  }

private:
  void serve(std::uint32_t number) {
    for (std::uint64_t seen = 0;;) {
      std::function<void(std::uint32_t)> const* body = nullptr;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return stop_ || launch_ != seen; });
        if (stop_) return;
        seen = launch_;
        body = body_;
      }
      (*body)(number);
      std::lock_guard<std::mutex> const lock(mutex_);
      if (--running_ == 0) done_.notify_one();
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::function<void(std::uint32_t)> const* body_ = nullptr;
  std::size_t running_ = 0;
  std::uint64_t launch_ = 0;
  bool stop_ = false;
};

}  // namespace support
