// The live figures as a picture: a line per method and budget, three bars each.
#include "files.hpp"
#include "report.hpp"
#include "svg.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tiny_llama {
namespace {

constexpr int width = 980;
constexpr double line_height = 20, bar_height = 13;
constexpr double label_right = 128;
struct column {
  double left, right;
  std::string_view heading;
};
constexpr column degrees_at{140, 470, "Entries by degree"};
constexpr column fates_at{500, 740, "What became of the tokens"};
constexpr column mass_at{770, 900, "Attention mass retained"};

// From light to dark: one token, two and three, four to seven, and so on; the last is for all above.
constexpr std::array<std::string_view, 6> shades{"#deebf7", "#b3cde3", "#8cb3d9",
                                                 "#4f8fc4", "#2166ac", "#0b2c5c"};
constexpr std::array<std::string_view, 6> shade_names{"1", "2-3", "4-7", "8-15", "16-31", "32+"};
constexpr std::array<std::string_view, 3> fate_colours{"#009e73", "#e69f00", "#c8c8c8"};
constexpr std::array<std::string_view, 3> fate_names{"kept", "merged", "dropped"};

std::string percent(double share) {
  char words[32];
  std::snprintf(words, sizeof words, "%.3g%%", share * 100);
  return words;
}

void rectangle(svg& out, double left, double right, double top, std::string_view fill) {
  if (right - left < 0.05) {
    return;
  }
  out.polygon(
      std::array<point, 4>{{{left, top}, {right, top}, {right, top + bar_height}, {left, top + bar_height}}},
      fill);
}

// Parts of a whole, side by side.
template <class Colours>
void stacked(svg& out, column const& where, double top, std::vector<double> const& parts,
             Colours const& colours) {
  double left = where.left;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    double const right = std::min(where.right, left + parts[i] * (where.right - where.left));
    rectangle(out, left, right, top, colours[i]);
    left = right;
  }
}

// Degrees in as many classes as there are shades.
std::vector<double> by_shade(std::vector<double> const& degrees) {
  std::vector<double> out(shades.size(), 0.0);
  for (std::size_t b = 0; b < degrees.size(); ++b) {
    out[std::min(b, shades.size() - 1)] += degrees[b];
  }
  return out;
}

void draw_row(svg& out, report_row const& row, double top) {
  std::string_view const grey = " fill=\"#777777\"";
  out.text({label_right, top + 11}, row.method, "end", " fill=\"#222222\"");
  stacked(out, degrees_at, top, by_shade(row.degrees), shades);
  if (row.merged >= 0 && row.dropped >= 0) {
    stacked(out, fates_at, top, {1 - row.merged - row.dropped, row.merged, row.dropped}, fate_colours);
  }
  if (row.mass_retained < 0) {
    out.text({mass_at.left, top + 11}, "no score", "start", grey);
    return;
  }
  double const end = mass_at.left + row.mass_retained * (mass_at.right - mass_at.left);
  rectangle(out, mass_at.left, mass_at.right, top, "#eeeeee");
  rectangle(out, mass_at.left, end, top, "#0072b2");
  out.text({mass_at.right + 8, top + 11}, percent(row.mass_retained), "start", " fill=\"#222222\"");
}

template <class Colours, class Names>
void draw_legend(svg& out, column const& where, double top, Colours const& colours, Names const& names) {
  double const step = (where.right - where.left) / static_cast<double>(colours.size());
  for (std::size_t i = 0; i < colours.size(); ++i) {
    double const left = where.left + static_cast<double>(i) * step;
    rectangle(out, left, left + 12, top, colours[i]);
    out.text({left + 16, top + 11}, names[i], "start", " font-size=\"11\" fill=\"#444444\"");
  }
}

}  // namespace

std::string to_figures_chart(report const& results) {
  std::vector<double> budgets;
  for (auto const& row : results.rows) {
    if (row.kind != "full") {
      budgets.push_back(row.budget);
    }
  }
  std::sort(budgets.rbegin(), budgets.rend());
  budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
  auto const compressed = static_cast<double>(std::count_if(
      results.rows.begin(), results.rows.end(), [](report_row const& r) { return r.kind != "full"; }));

  double top = 112;
  auto const blocks = static_cast<double>(budgets.size());
  svg out(width, static_cast<int>(top + compressed * line_height + blocks * 40 + 36));
  out.text({40, 32}, "What compression did to the cache", "start",
           " font-size=\"18\" font-weight=\"bold\" fill=\"#111111\"");
  out.text({40, 54},
           results.model + ", " + std::to_string(results.contexts) + " contexts of " +
               std::to_string(results.context) + " tokens; all layers and heads",
           "start", " font-size=\"13\" fill=\"#555555\"");
  for (column const& c : {degrees_at, fates_at, mass_at}) {
    out.text({c.left, 80}, c.heading, "start", " font-size=\"14\" font-weight=\"bold\" fill=\"#222222\"");
  }
  draw_legend(out, degrees_at, 90, shades, shade_names);
  draw_legend(out, fates_at, 90, fate_colours, fate_names);
  for (double const budget : budgets) {
    top += 22;
    out.text({40, top}, "budget " + percent(budget), "start", " font-weight=\"bold\" fill=\"#222222\"");
    top += 8;
    for (auto const& row : results.rows) {
      if (row.kind == "full" || row.budget != budget) {
        continue;
      }
      draw_row(out, row, top);
      top += line_height;
    }
    top += 10;
  }
  out.text({40, top + 22},
           "Mass: the share of what each policy's own score had gathered (attention of all queries or of the "
           "last ones, or "
           "hits), mean over tracks.",
           "start", " font-size=\"11\" fill=\"#777777\"");
  return std::move(out).finish();
}

void write_figures_chart(report const& results, std::string const& path) {
  write_file(path, to_figures_chart(results));
}

}  // namespace tiny_llama
