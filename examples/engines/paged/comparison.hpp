// The same requests served from the same pool of pages, with caches of different size: how many run at a
// time, how many are answered in a second, and how well.
#pragma once

#include "host_engine.hpp"
#include "serve.hpp"
#include "workload.hpp"

#include <demo/methods.hpp>
#include <tiny_llama/model.hpp>
#include <tiny_llama/output_file.hpp>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace paged_engine {

struct compared_row {
  std::string policy;  ///< "full": nothing is merged or evicted
  double share = 1;
  std::uint32_t budget = 0, trigger = 0;  ///< entries
  served result;
  totals sums;
  std::uint32_t most_pages = 0;
};

struct comparison {
  std::vector<compared_row> rows;  ///< the first one is "full"
  std::uint32_t requests = 0, pages = 0, page_size = 0;
  double mean_prompt = 0;  ///< tokens
};

/// A share as a percentage.
inline std::string share_text(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%g%%", 100 * share);
  return text;
}

/// Serves `work` once as it is, and once for each policy and share. A budget is a share of the mean prompt,
/// and a sequence is compressed when it has grown by `chunk` tokens. `tell` is shown what runs.
inline comparison compare(tiny_llama::model& model, std::vector<workload_item> const& work,
                          engine_options options, std::vector<std::string> const& policies,
                          std::vector<double> const& shares,
                          std::function<void(std::string const&)> const& tell) {
  comparison out;
  out.requests = static_cast<std::uint32_t>(work.size());
  out.pages = options.sizes.pages;
  out.page_size = options.sizes.page_size;
  for (workload_item const& item : work)
    out.mean_prompt += static_cast<double>(item.asked.prompt.size()) / static_cast<double>(work.size());
  std::vector<compared_row> rows{{"full", 1, 0, 0, {}, {}, 0}};
  for (std::string const& policy : policies) {
    for (double const share : shares) {
      auto const budget = static_cast<std::uint32_t>(share * out.mean_prompt);
      rows.push_back({policy, share, budget, budget + options.chunk, {}, {}, 0});
    }
  }
  for (compared_row const& row : rows) {
    options.budget = row.budget;
    options.trigger = row.trigger;
    std::string problem = options_problem(options);
    for (workload_item const& item : work) {
      if (problem.empty())
        problem =
            request_problem(item.asked, options, static_cast<std::uint32_t>(model.shape().max_positions));
    }
    if (problem.empty()) continue;
    throw std::invalid_argument(row.trigger == 0
                                    ? problem
                                    : "with a budget of " + share_text(row.share) + ", which keeps " +
                                          std::to_string(row.budget) + " entries: " + problem);
  }
  for (compared_row& row : rows) {
    tell(row.policy);
    options.budget = row.budget;
    options.trigger = row.trigger;
    host_engine e(model, options, demo::policy_of(row.policy, {}));
    row.result = serve(e, work, nullptr);
    row.sums = e.sums();
    row.most_pages = e.pool().max_used();
    out.rows.push_back(std::move(row));
  }
  return out;
}

inline void print_table(comparison const& c, std::ostream& out) {
  char text[200];
  std::snprintf(text, sizeof text,
                "%u requests at once, prompts of %.0f tokens on average; a pool of %u pages of %u tokens\n\n",
                c.requests, c.mean_prompt, c.pages, c.page_size);
  out << text;
  out << "                     budget:          running:              answered:                    tokens  "
         "digits\n"
         "policy               share  entries   mean  most   / full    a second   / full preempted   again   "
         "right\n"
         "---------------------------------------------------------------------------------------------------"
         "---\n";
  served const& full = c.rows.front().result;
  for (compared_row const& row : c.rows) {
    served const& r = row.result;
    std::string const entries = row.trigger == 0 ? "all" : std::to_string(row.budget);
    std::snprintf(text, sizeof text,
                  "%-20s %4.0f%% %8s %7.1f %5zu %7.2fx %10.2f %7.2fx %9llu %7llu %6.1f%%\n",
                  row.policy.c_str(), 100 * row.share, entries.c_str(), r.mean_running(), r.most_running,
                  r.mean_running() / full.mean_running(), static_cast<double>(c.requests) / r.seconds,
                  full.seconds / r.seconds, static_cast<unsigned long long>(row.sums.preemptions),
                  static_cast<unsigned long long>(row.sums.read_again),
                  100.0 * r.right_digits / (r.digits == 0 ? 1 : r.digits));
    out << text;
  }
}

inline void write_json(comparison const& c, std::string const& path) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (compared_row const& row : c.rows) {
    rows.push_back({{"policy", row.policy},
                    {"share", row.share},
                    {"budget", row.budget},
                    {"trigger", row.trigger},
                    {"mean_running", row.result.mean_running()},
                    {"most_running", row.result.most_running},
                    {"steps", row.sums.steps},
                    {"seconds", row.result.seconds},
                    {"requests_per_second", static_cast<double>(c.requests) / row.result.seconds},
                    {"preemptions", row.sums.preemptions},
                    {"tokens_read_again", row.sums.read_again},
                    {"most_pages", row.most_pages},
                    {"digits_right", row.result.right_digits},
                    {"digits", row.result.digits}});
  }
  nlohmann::ordered_json const all{{"requests", c.requests},
                                   {"mean_prompt", c.mean_prompt},
                                   {"pages", c.pages},
                                   {"page_size", c.page_size},
                                   {"serving", rows}};
  tiny_llama::write_file(path, all.dump(2) + "\n");
}

}  // namespace paged_engine
