// What the demo runs: each method as it is, and again with what a calibration knows about the model.
#pragma once

#include "measure.hpp"
#include "methods.hpp"

#include <tiny_llama/calibration_file.hpp>
#include <tiny_llama/error.hpp>
#include <tiny_llama/model.hpp>
#include <tiny_llama/options.hpp>

#include <kvmeld/calibrate.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace demo {

/// A method with its targets. Thresholds per layer, where it has any, lie in the variant.
struct variant {
  std::string name;    ///< as reported
  std::string method;  ///< whose policy it is
  std::vector<target> targets;
  std::vector<float> thresholds;  ///< KVMerger's, per layer; then there is one target
};

/// Reads the file of --calibration and refuses one for another model.
inline kvmeld::calibrate::calibration calibration_for(tiny_llama::model const& model,
                                                      std::string const& path) {
  kvmeld::calibrate::calibration const c = tiny_llama::load_calibration(path);
  if (std::string const problem = calibration_problem(c, tiny_llama::extent_of(model.shape(), 1));
      !problem.empty()) {
    throw tiny_llama::model_error(path, problem);
  }
  return c;
}

/// The methods of the options at their budgets. A method that the calibration knows runs again with a share
/// per head
/// ("chelsea+cal"), Chelsea also with its outlier heads whole ("chelsea+outliers"), KVMerger also with the
/// thresholds per layer that were found for a budget ("kvmerger+theta").
inline std::vector<variant> variants_of(tiny_llama::options const& o,
                                        kvmeld::calibrate::calibration const* c) {
  std::vector<variant> out;
  for (std::string const& method : o.methods) {
    if (method == "full") {
      out.push_back({method, method, {{1.0, {}, false}}, {}});
      continue;
    }
    variant plain{method, method, {}, {}};
    for (double const budget : o.budgets) plain.targets.push_back({budget, {}, true});
    out.push_back(plain);
    if (c == nullptr) continue;
    if (auto const* found = c->find(method)) {
      variant v{method + "+cal", method, {}, {}};
      for (double const budget : o.budgets) {
        double const least = found->curves.front().share.front();
        v.targets.push_back(
            {budget, kvmeld::calibrate::allot(found->curves, budget, std::min(least, budget)), true});
      }
      out.push_back(std::move(v));
    }
    if (method == "chelsea" && !c->unmatched.empty()) {
      variant v{method + "+outliers", method, {}, {}};
      auto const outliers = kvmeld::calibrate::outlier_heads(c->unmatched);
      for (double const budget : o.budgets) {
        double const whole = static_cast<double>(std::count(outliers.begin(), outliers.end(), true));
        if (budget * static_cast<double>(outliers.size()) <
            whole + 0.05 * (static_cast<double>(outliers.size()) - whole))
          continue;
        v.targets.push_back({budget, kvmeld::calibrate::outlier_shares(outliers, budget), true});
      }
      if (!v.targets.empty()) out.push_back(std::move(v));
    }
    for (auto const& t : c->thresholds) {
      bool const wanted = std::any_of(o.budgets.begin(), o.budgets.end(),
                                      [&](double b) { return std::abs(b - t.ratio) < 1e-9; });
      if (method != "kvmerger" || !wanted) continue;
      variant v{method + "+theta", method, {{t.ratio, {}, true}}, {}};
      for (std::size_t layer = 0; layer < t.theta.size(); ++layer) {
        v.thresholds.push_back(static_cast<float>(t.mean(layer)));
      }
      out.push_back(std::move(v));
    }
  }
  return out;
}

/// Runs `run(policy)` with the policy of a variant, which has to stay where it is meanwhile.
template <class Run> void with_policy(variant const& v, tiny_llama::options const& o, Run run) {
  if (v.thresholds.empty()) return with_policy(v.method, o, run);
  run(composed_of(kvmerger_with(v.thresholds.data(), v.targets.front().share)));
}

/// Steps of the progress bar that a variant takes per context.
inline double steps_of(variant const& v, int needles) {
  return static_cast<double>(v.targets.size()) + needles;
}

}  // namespace demo
