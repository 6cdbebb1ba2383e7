#include "output_file.hpp"
#include "report.hpp"
#include "svg.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace tiny_llama {
namespace {

constexpr int width = 980, height = 484;
constexpr double panel_top = 96, panel_bottom = 372;

struct series {
  std::string method;
  bool merges;
  std::string_view colour;
  std::size_t marker;
  std::vector<report_row const*> rows;  // by budget, ascending
};

std::vector<series> collect(report const& results) {
  std::vector<series> out;
  for (auto const& row : results.rows) {
    if (row.kind == "full") {
      continue;
    }
    auto found =
        std::find_if(out.begin(), out.end(), [&](series const& s) { return s.method == row.method; });
    if (found == out.end()) {
      // Colours come round again after six methods: with another marker.
      std::size_t const marker = out.size() + out.size() / palette.size();
      out.push_back({row.method, row.kind == "merge", palette[out.size() % palette.size()], marker, {}});
      found = out.end() - 1;
    }
    found->rows.push_back(&row);
  }
  for (auto& s : out) {
    std::sort(s.rows.begin(), s.rows.end(),
              [](auto const* a, auto const* b) { return a->budget < b->budget; });
  }
  return out;
}

void draw_marker(svg& out, point at, std::size_t shape, std::string_view colour) {
  double const r = 5;
  switch (shape % 6) {
  case 0: return out.circle(at, r, colour);
  case 1:
    return out.polygon(std::array<point, 4>{{{at.x - 4.5, at.y - 4.5},
                                             {at.x + 4.5, at.y - 4.5},
                                             {at.x + 4.5, at.y + 4.5},
                                             {at.x - 4.5, at.y + 4.5}}},
                       colour);
  case 2:
    return out.polygon(
        std::array<point, 3>{{{at.x, at.y - 6}, {at.x + 5.5, at.y + 4.5}, {at.x - 5.5, at.y + 4.5}}}, colour);
  case 3:
    return out.polygon(
        std::array<point, 4>{
            {{at.x, at.y - 6.5}, {at.x + 6.5, at.y}, {at.x, at.y + 6.5}, {at.x - 6.5, at.y}}},
        colour);
  case 4:
    return out.polygon(
        std::array<point, 3>{{{at.x, at.y + 6}, {at.x + 5.5, at.y - 4.5}, {at.x - 5.5, at.y - 4.5}}}, colour);
  default:
    return out.polygon(std::array<point, 6>{{{at.x - 6, at.y},
                                             {at.x - 3, at.y - 5.2},
                                             {at.x + 3, at.y - 5.2},
                                             {at.x + 6, at.y},
                                             {at.x + 3, at.y + 5.2},
                                             {at.x - 3, at.y + 5.2}}},
                       colour);
  }
}

std::string_view dashes_of(series const& s) {
  return s.merges ? std::string_view() : std::string_view("6 4");
}

struct axis {
  double low, high, step;
  int decimals;
};

// A step of 1, 2 or 5 times a power of ten that gives about five ticks.
axis nice_axis(double low, double high) {
  double const least = 0.05;  // so that the noise of small differences does not fill the panel
  if (high - low < least) {
    double const missing = least - (high - low);
    low -= missing / 2;
    high += missing / 2;
  }
  double const span = high - low;
  double const raw = span / 5, power = std::pow(10.0, std::floor(std::log10(raw)));
  double const lead = raw / power;
  double const step = power * (lead < 1.5 ? 1 : lead < 3.5 ? 2 : lead < 7.5 ? 5 : 10);
  return {std::floor(low / step - 0.25) * step, std::ceil(high / step + 0.25) * step, step,
          std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 4)};
}

class panel {
public:
  panel(svg& out, double left, double right, axis y, std::vector<double> const& budgets)
      : out_(out), left_(left), right_(right), y_(y), low_(budgets.front()), high_(budgets.back()) {
    double const margin = std::max(0.08 * (high_ - low_), 0.02);  // one budget alone stands in the middle
    low_ -= margin;
    high_ += margin;
    frame(budgets);
  }

  point at(double budget, double value) const {
    return {left_ + (budget - low_) / (high_ - low_) * (right_ - left_),
            panel_bottom - (value - y_.low) / (y_.high - y_.low) * (panel_bottom - panel_top)};
  }

  void label(std::string_view heading, std::string_view y_words) const {
    out_.text({left_, panel_top - 12}, heading, "start",
              " font-size=\"14\" font-weight=\"bold\" fill=\"#222222\"");
    out_.text({(left_ + right_) / 2, panel_bottom + 40}, "budget: share of cache entries kept", "middle",
              " fill=\"#444444\"");
    point const turn{left_ - 44, (panel_top + panel_bottom) / 2};
    out_.text(turn, y_words, "middle",
              " fill=\"#444444\" transform=\"rotate(-90 " + svg::number(turn.x) + " " + svg::number(turn.y) +
                  ")\"");
  }

  void full_cache(double value) const {
    auto const y = at(low_, value).y;
    out_.line({left_, y}, {right_, y}, "#555555", 1.5, "2 3");
  }

  void draw(series const& s, double report_row::*value) const {
    std::vector<point> points;
    for (auto const* row : s.rows) {
      if (row->*value >= 0) {
        points.push_back(at(row->budget, row->*value));
      }
    }
    if (points.size() > 1) {
      out_.polyline(points, s.colour, 2, dashes_of(s));
    }
    for (auto const p : points) {
      draw_marker(out_, p, s.marker, s.colour);
    }
  }

private:
  void frame(std::vector<double> const& budgets) const {
    for (int i = 0; y_.low + i * y_.step <= y_.high + 1e-6 * y_.step; ++i) {
      double const value = y_.low + i * y_.step, y = at(low_, value).y;
      out_.line({left_, y}, {right_, y}, "#e6e6e6", 1);
      char words[32];
      std::snprintf(words, sizeof words, "%.*f", y_.decimals, value);
      out_.text({left_ - 8, y + 4}, words, "end", " fill=\"#444444\"");
    }
    double last = -1e9;
    for (double const budget : budgets) {
      double const x = at(budget, y_.low).x;
      out_.line({x, panel_bottom}, {x, panel_bottom + 5}, "#888888", 1);
      if (x - last >= 34) {  // labels of close budgets would run into each other
        char words[32];
        std::snprintf(words, sizeof words, "%.3g%%", budget * 100);
        out_.text({x, panel_bottom + 19}, words, "middle", " fill=\"#444444\"");
        last = x;
      }
    }
    out_.line({left_, panel_bottom}, {right_, panel_bottom}, "#888888", 1);
  }

  svg& out_;
  double left_, right_;
  axis y_;
  double low_, high_;
};

void draw_legend(svg& out, std::vector<series> const& all, bool has_full) {
  constexpr int columns = 3;
  constexpr double left = 70, step = 300, top = panel_bottom + 68;
  int place = 0;
  auto const next = [&place] {
    point const at{left + (place % columns) * step, top + (place / columns) * 22};
    ++place;
    return at;
  };
  for (auto const& s : all) {
    auto const at = next();
    out.line({at.x, at.y}, {at.x + 34, at.y}, s.colour, 2, dashes_of(s));
    draw_marker(out, {at.x + 17, at.y}, s.marker, s.colour);
    out.text({at.x + 42, at.y + 4}, s.method + (s.merges ? " (merges)" : " (evicts)"), "start",
             " fill=\"#222222\"");
  }
  if (has_full) {
    auto const at = next();
    out.line({at.x, at.y}, {at.x + 34, at.y}, "#555555", 1.5, "2 3");
    out.text({at.x + 42, at.y + 4}, "full cache", "start", " fill=\"#222222\"");
  }
}

// Smallest and largest measured value of a column, the full cache included.
std::pair<double, double> range_of(report const& results, double report_row::*value) {
  double low = 1e300, high = -1;
  for (auto const& row : results.rows) {
    if (row.*value >= 0) {
      low = std::min(low, row.*value);
      high = std::max(high, row.*value);
    }
  }
  return high < 0 ? std::pair(0.0, 1.0) : std::pair(low, high);
}

}  // namespace

std::string to_chart(report const& results) {
  auto const all = collect(results);
  bool const tasks = !results.tasks.empty();
  auto const full = std::find_if(results.rows.begin(), results.rows.end(),
                                 [](report_row const& r) { return r.kind == "full"; });
  std::vector<double> budgets;
  for (auto const& s : all) {
    for (auto const* row : s.rows) {
      budgets.push_back(row->budget);
    }
  }
  if (budgets.empty()) {
    budgets.push_back(1.0);
  }
  std::sort(budgets.begin(), budgets.end());
  budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());

  auto const rows_of_legend = static_cast<int>((all.size() + 1 + 2) / 3);
  svg out(width, height + std::max(0, rows_of_legend - 2) * 22);
  out.text({70, 32}, "What a smaller KV cache still knows", "start",
           " font-size=\"18\" font-weight=\"bold\" fill=\"#111111\"");
  out.text({70, 54},
           results.model + ", " + std::to_string(results.contexts) + " held-out contexts of " +
               std::to_string(results.context) + " tokens" +
               (tasks ? " on average, " + std::to_string(results.tasks.size()) + " tasks"
                      : ", " + std::to_string(results.needles) + " planted numbers each") +
               ", asked after compression",
           "start", " font-size=\"13\" fill=\"#555555\"");

  auto const draw = [&](double left, double right, axis y, double report_row::*value,
                        std::string_view heading, std::string_view words) {
    panel const where(out, left, right, y, budgets);
    where.label(heading, words);
    if (full != results.rows.end() && (*full).*value >= 0) {
      where.full_cache((*full).*value);
    }
    for (auto const& s : all) {
      where.draw(s, value);
    }
  };
  auto const [low, high] = range_of(results, &report_row::bits);
  if (tasks) {
    draw(70, 470, {0, 1, 0.2, 1}, &report_row::needle_exact, "Exact answers (higher is better)",
         "share of answers, mean over tasks");
  } else {
    draw(70, 470, {0, 1, 0.2, 1}, &report_row::needle_accuracy, "Planted digits recalled (higher is better)",
         "share of digits right");
  }
  draw(550, 950, nice_axis(low, high), &report_row::bits,
       tasks ? "Right answers (lower is better)" : "Held-out text that follows (lower is better)",
       "bits per " + results.unit);
  draw_legend(out, all, full != results.rows.end());
  return std::move(out).finish();
}

void write_chart(report const& results, std::string const& path) { write_file(path, to_chart(results)); }

}  // namespace tiny_llama
