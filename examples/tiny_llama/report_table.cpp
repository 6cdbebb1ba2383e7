#include "report.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ostream>

namespace tiny_llama {
namespace {

enum class best { none, low, high };

struct column {
  char const *top, *bottom;  // two lines of heading
  int width;
  double report_row::*value;
  char const* format;
  double scale;
  best wanted;
};

std::array<column, 8> const columns{{
    {"bits per", "byte", 9, &report_row::bits_per_byte, "%.3f", 1, best::low},
    {"asked", "digits", 9, &report_row::needle_accuracy, "%.1f%%", 100, best::high},
    {"after", "exact", 9, &report_row::needle_exact, "%.1f%%", 100, best::high},
    {"asked", "digits", 9, &report_row::needle_accuracy_inside, "%.1f%%", 100, best::high},
    {"inside", "exact", 9, &report_row::needle_exact_inside, "%.1f%%", 100, best::high},
    {"output", "error", 8, &report_row::output_error, "%.3f", 1, best::low},
    {"compress", "ms", 10, &report_row::compress_ms, "%.2f", 1, best::low},
    {"decode", "tokens/s", 10, &report_row::decode_tokens_per_s, "%.0f", 1, best::high},
}};
constexpr std::size_t kv_before = 6;  // the KV size stands before this column

std::string formatted(char const* format, double value) {
  char text[48];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string cell(report_row const& row, column const& c) {
  double const value = row.*(c.value);
  return value < 0 ? "-" : formatted(c.format, value * c.scale);
}

std::string right(std::string const& text, int width) {
  auto const wanted = static_cast<std::size_t>(width);
  return text.size() >= wanted ? text : std::string(wanted - text.size(), ' ') + text;
}

std::string left(std::string text, int width) {
  text.resize(static_cast<std::size_t>(width), ' ');
  return text;
}

using rows_ref = std::vector<report_row const*>;

// As printed: rows that look equal are equally good. Nothing is best where there is nothing to compare.
std::string best_cell(rows_ref const& group, column const& c) {
  report_row const* found = nullptr;
  std::size_t measured = 0;
  bool differ = false;
  for (auto const* row : group) {
    double const value = row->*(c.value);
    if (value < 0) {
      continue;
    }
    ++measured;
    differ = differ || (found && cell(*row, c) != cell(*found, c));
    if (!found || (c.wanted == best::low ? value < found->*(c.value) : value > found->*(c.value))) {
      found = row;
    }
  }
  return measured > 1 && differ ? cell(*found, c) : std::string();
}

void print_group(rows_ref const& group, bool mark, int names, std::ostream& out) {
  std::array<std::string, columns.size()> winners;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    winners[i] = mark ? best_cell(group, columns[i]) : std::string();
  }
  for (auto const* row : group) {
    out << left(row->method, names) << left(row->kind, 6) << right(formatted("%.0f%%", row->budget * 100), 6);
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (i == kv_before) {
        out << right(formatted("%.0f", static_cast<double>(row->kv_bytes) / 1024), 8) << ' ';
      }
      auto const text = cell(*row, columns[i]);
      // The mark has a place of its own, so that digits stay aligned.
      out << right(text, columns[i].width - 1) << (text == winners[i] ? '*' : ' ');
    }
    out << '\n';
  }
}

void print_heading(int names, std::ostream& out) {
  for (bool const top : {true, false}) {
    out << left(top ? "" : "method", names) << left(top ? "" : "kind", 6) << right(top ? "" : "budget", 6);
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (i == kv_before) {
        out << right(top ? "KV" : "KiB", 8) << ' ';
      }
      out << right(top ? columns[i].top : columns[i].bottom, columns[i].width - 1) << ' ';
    }
    out << '\n';
  }
}

}  // namespace

void print_table(report const& results, std::ostream& out) {
  int names = 14;
  for (auto const& row : results.rows) names = std::max(names, static_cast<int>(row.method.size()) + 1);
  int width = names + 6 + 6 + 9;
  for (auto const& c : columns) {
    width += c.width;
  }
  std::string const line(static_cast<std::size_t>(width), '-');
  out << results.model << ": " << results.contexts << " contexts of " << results.context << " tokens, "
      << results.needles << " needles each, seed " << results.seed << "\n\n";
  print_heading(names, out);
  out << line << '\n';

  rows_ref full;
  std::vector<double> budgets;
  for (auto const& row : results.rows) {
    if (row.kind == "full") {
      full.push_back(&row);
    } else if (std::find(budgets.begin(), budgets.end(), row.budget) == budgets.end()) {
      budgets.push_back(row.budget);
    }
  }
  std::sort(budgets.rbegin(), budgets.rend());
  print_group(full, false, names, out);
  bool first = full.empty();
  for (double const budget : budgets) {
    rows_ref group;
    for (auto const& row : results.rows) {
      if (row.kind != "full" && !(row.budget < budget) && !(row.budget > budget)) {
        group.push_back(&row);
      }
    }
    out << (first ? "" : line + "\n");
    first = false;
    print_group(group, true, names, out);
  }
  out << line
      << "\n* best of its budget. Planted digits, asked after: once the cache was compressed; inside: in the "
         "prompt.\n";
}

}  // namespace tiny_llama
