#include "chart.hpp"

#include <tiny_llama/svg.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace calibrating {
namespace {

using kvmeld::calibrate::calibration;
using tiny_llama::palette;
using tiny_llama::point;
using tiny_llama::svg;

constexpr double top = 76, bottom = 400;

std::string fixed(double x, int decimals) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", decimals, x);
  return text;
}

void draw_thresholds(svg& out, calibration const& c) {
  constexpr double left = 56, right = 400;
  double low = 1, high = -1;
  for (auto const& t : c.thresholds) {
    for (auto const& layer : t.theta) {
      for (double x : layer) {
        low = std::min(low, x);
        high = std::max(high, x);
      }
    }
  }
  double const step = high - low > 0.6 ? 0.2 : 0.1;
  low = step * static_cast<double>(static_cast<int>(low / step + 100) - 100);
  high = std::max(low + step, step * static_cast<double>(static_cast<int>(high / step + 101) - 100));
  auto const at = [&](double layer, double theta) {
    return point{left + (layer + 0.5) * (right - left) / c.of.layers,
                 bottom - (theta - low) / (high - low) * (bottom - top)};
  };
  out.text({left, top - 18}, "KVMerger's threshold by layer, a dot per sample", "start",
           " font-weight=\"bold\"");
  for (double tick = low; tick <= high + 1e-9; tick += step) {
    double const y = at(0, tick).y;
    out.line({left, y}, {right, y}, "#dddddd", 1);
    out.text({left - 8, y + 4}, fixed(tick, 1), "end");
  }
  for (std::uint32_t layer = 0; layer < c.of.layers; ++layer) {
    out.text({at(layer, low).x, bottom + 18}, std::to_string(layer), "middle");
  }
  out.text({(left + right) / 2, bottom + 36}, "layer", "middle");
  for (std::size_t i = 0; i < c.thresholds.size(); ++i) {
    auto const& t = c.thresholds[i];
    std::string_view const colour = palette[i % palette.size()];
    std::vector<point> means;
    for (std::size_t layer = 0; layer < t.theta.size(); ++layer) {
      for (std::size_t s = 0; s < t.theta[layer].size(); ++s) {
        double const beside =
            0.3 * (static_cast<double>(s) / static_cast<double>(t.theta[layer].size()) - 0.5);
        out.circle(at(static_cast<double>(layer) + beside, t.theta[layer][s]), 3, colour);
      }
      means.push_back(at(static_cast<double>(layer), t.mean(layer)));
    }
    out.polyline(means, colour, 1.5);
    double const x = left + 90.0 * static_cast<double>(i);
    out.line({x, bottom + 58}, {x + 18, bottom + 58}, colour, 2);
    out.text({x + 23, bottom + 62}, fixed(100 * t.ratio, 0) + " % kept");
  }
}

// White to blue.
std::string shade(double x) {
  auto const mix = [x](int from, int to) {
    return static_cast<int>(from + (to - from) * std::clamp(x, 0.0, 1.0));
  };
  char text[8];
  std::snprintf(text, sizeof text, "#%02x%02x%02x", mix(0xf4, 0x00) & 0xff, mix(0xf6, 0x4c) & 0xff,
                mix(0xf8, 0x99) & 0xff);
  return text;
}

void draw_heads(svg& out, calibration const& c) {
  constexpr double left = 560, right = 960;
  struct row {
    std::string name;
    std::vector<double> value;
  };
  std::vector<row> rows;
  if (!c.unmatched.empty()) rows.push_back({"unmatched keys", c.unmatched});
  for (auto const& m : c.methods) {
    rows.push_back({m.method, {}});
    for (auto const& curve : m.curves) rows.back().value.push_back(std::max(0.0, curve.cost.front()));
  }
  auto const heads = static_cast<double>(c.of.heads());
  double const width = (right - left) / heads,
               height = std::min(40.0, (bottom - top) / static_cast<double>(rows.size()));
  out.text({left - 110, top - 18}, "Bits lost if one head alone keeps least; darkest: the row's largest",
           "start", " font-weight=\"bold\"");
  for (std::size_t r = 0; r < rows.size(); ++r) {
    double const y = top + height * static_cast<double>(r);
    double const most = *std::max_element(rows[r].value.begin(), rows[r].value.end());
    out.text({left - 8, y + height / 2 + 4}, rows[r].name, "end");
    for (std::size_t h = 0; h < rows[r].value.size(); ++h) {
      double const x = left + width * static_cast<double>(h);
      std::array<point, 4> const cell{
          {{x, y}, {x + width - 1, y}, {x + width - 1, y + height - 1}, {x, y + height - 1}}};
      out.polygon(cell, shade(most > 0 ? rows[r].value[h] / most : 0));
    }
    out.text({right + 8, y + height / 2 + 4}, fixed(most, 2));
  }
  double const under = top + height * static_cast<double>(rows.size());
  for (std::uint32_t layer = 0; layer < c.of.layers; ++layer) {
    double const x = left + width * layer * c.of.kv_heads;
    out.line({x, top}, {x, under + 6}, "#555555", 1);
    out.text({x + width * c.of.kv_heads / 2, under + 18}, "layer " + std::to_string(layer), "middle");
  }
  out.text({left, under + 40}, "KV heads; at the right the row's largest");
  if (!c.unmatched.empty()) {
    out.text({left, under + 58}, "unmatched keys: share of A entries without a partner (Chelsea)");
  }
}

}  // namespace

std::string to_chart(calibration const& c) {
  svg out(1030, 490);
  out.text({16, 28},
           "Calibration of " + c.model + ", " + std::to_string(c.samples) + " samples of " +
               std::to_string(c.tokens) + " tokens",
           "start", " font-size=\"16\"");
  if (!c.thresholds.empty()) draw_thresholds(out, c);
  if (!c.unmatched.empty() || !c.methods.empty()) draw_heads(out, c);
  return std::move(out).finish();
}

}  // namespace calibrating
