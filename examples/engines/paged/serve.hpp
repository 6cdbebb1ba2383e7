// Runs a workload to its end and says what it took.
#pragma once

#include "engine.hpp"
#include "live_table.hpp"
#include "workload.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <ostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace paged_engine {

struct served {
  std::map<std::uint32_t, std::vector<int>> tokens;  ///< by request: prompt and answer
  int right_digits = 0, digits = 0;
  std::uint64_t full_entries = 0;  ///< the most entries that would have been held at a time without merging
  double seconds = 0;
  std::uint64_t steps = 0, running = 0;  ///< steps with work, and the requests that ran in each, summed
  std::size_t most_running = 0;

  double mean_running() const {
    return steps == 0 ? 0 : static_cast<double>(running) / static_cast<double>(steps);
  }
};

/// Every step's tables are checked; `table` is null for silence.
template <class Engine> served serve(Engine& e, std::vector<workload_item> const& work, live_table* table) {
  served out;
  auto const begin = std::chrono::steady_clock::now();
  std::size_t next = 0;
  for (std::uint32_t step = 0; next < work.size() || !e.idle(); ++step) {
    while (next < work.size() && work[next].arrives <= step) e.submit(work[next++].asked);
    if (e.idle()) continue;
    std::vector<sequence> const done = e.step();
    std::size_t const ran = e.running().size() + done.size();
    ++out.steps;
    out.running += ran;
    out.most_running = std::max(out.most_running, ran);
    for (sequence const& s : done) {
      std::string const& answer = work[s.asked.id].answer;
      out.right_digits += right_digits(s, answer);
      out.digits += static_cast<int>(answer.size());
      out.tokens[s.asked.id] = s.tokens;
    }
    std::uint64_t held = 0;
    for (sequence const& s : e.running()) held += s.done;
    out.full_entries = std::max(out.full_entries, held);
    if (table != nullptr) table->show(e);
    if (std::string const problem = e.page_problem(); !problem.empty()) throw std::logic_error(problem);
  }
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return out;
}

template <class Engine> void print_summary(std::ostream& out, Engine const& e, served const& r) {
  auto const& t = e.sums();
  double const kib = static_cast<double>(e.kv().pool().page_bytes()) / 1024;
  char text[700];
  std::snprintf(
      text, sizeof text,
      "%zu requests in %.1f s: %llu tokens in %llu steps, %.0f tokens/s\n"
      "running at a time: %.1f on average, %zu at most\n"
      "planted digits recalled: %d of %d\n"
      "pages: %u of %u at most (%.0f KiB); what ran at the busiest moment would take %u unmerged\n"
      "merged %llu times, %llu pages returned; %llu tokens of prompts found in shared pages\n"
      "drafts: %llu of %llu kept; preempted %llu times, %llu tokens read again\n",
      r.tokens.size(), r.seconds, static_cast<unsigned long long>(t.tokens),
      static_cast<unsigned long long>(t.steps), static_cast<double>(t.tokens) / r.seconds, r.mean_running(),
      r.most_running, r.right_digits, r.digits, e.pool().max_used(), e.pool().total(),
      e.pool().max_used() * kib, e.kv().pool().pages_of(static_cast<std::uint32_t>(r.full_entries)),
      static_cast<unsigned long long>(t.compressions), static_cast<unsigned long long>(t.pages_returned),
      static_cast<unsigned long long>(t.prefix_tokens), static_cast<unsigned long long>(t.accepted),
      static_cast<unsigned long long>(t.drafts), static_cast<unsigned long long>(t.preemptions),
      static_cast<unsigned long long>(t.read_again));
  out << text;
}

}  // namespace paged_engine
