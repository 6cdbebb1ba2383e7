#include "report.hpp"
#include "table_cells.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <vector>

namespace tiny_llama {
namespace {

using table_cells::formatted;
using table_cells::left;
using table_cells::right;

enum class best { none, low, high };

struct column {
  std::string top, bottom;  // two lines of heading
  int width;
  double report_row::*value;
  char const* format;
  double scale;
  best wanted;
  std::size_t task = 0;  // without a value: exact answers of this task
};

std::vector<column> const columns_of_numbers{
    {"bits per", "byte", 9, &report_row::bits, "%.3f", 1, best::low},
    {"asked", "digits", 9, &report_row::needle_accuracy, "%.1f%%", 100, best::high},
    {"after", "exact", 9, &report_row::needle_exact, "%.1f%%", 100, best::high},
    {"asked", "digits", 9, &report_row::needle_accuracy_inside, "%.1f%%", 100, best::high},
    {"inside", "exact", 9, &report_row::needle_exact_inside, "%.1f%%", 100, best::high},
    {"output", "error", 8, &report_row::output_error, "%.3f", 1, best::low},
    {"compress", "ms", 10, &report_row::compress_ms, "%.2f", 1, best::low},
    {"decode", "tokens/s", 10, &report_row::decode_tokens_per_s, "%.0f", 1, best::high},
};
constexpr std::size_t kv_before = 6;  // the KV size stands before this column

/// With tasks, bytes or tokens stand for digits, and exact answers of each task for the speed of decoding.
std::vector<column> columns_of(report const& results) {
  std::vector<column> out = columns_of_numbers;
  out.front().bottom = results.unit;
  if (results.tasks.empty()) return out;
  out.pop_back();
  for (column& c : out) {
    if (c.bottom == "digits") c.bottom = results.unit + "s";
  }
  for (std::size_t i = 0; i < results.tasks.size(); ++i) {
    std::string const name = results.tasks[i].substr(0, 20);
    int const width = std::max(8, static_cast<int>(name.size()) + 2);
    out.push_back({i == 0 ? "exact" : "", name, width, nullptr, "%.1f%%", 100, best::high, i});
  }
  return out;
}

double value_of(report_row const& row, column const& c) {
  return c.value == nullptr ? row.task_exact.at(c.task) : row.*(c.value);
}

std::string cell(report_row const& row, column const& c) {
  double const value = value_of(row, c);
  return value < 0 ? "-" : formatted(c.format, value * c.scale);
}

using rows_ref = std::vector<report_row const*>;

// As printed: rows that look equal are equally good. Nothing is best where there is nothing to compare.
std::string best_cell(rows_ref const& group, column const& c) {
  report_row const* found = nullptr;
  std::size_t measured = 0;
  bool differ = false;
  for (auto const* row : group) {
    double const value = value_of(*row, c);
    if (value < 0) {
      continue;
    }
    ++measured;
    differ = differ || (found && cell(*row, c) != cell(*found, c));
    if (!found || (c.wanted == best::low ? value < value_of(*found, c) : value > value_of(*found, c))) {
      found = row;
    }
  }
  return measured > 1 && differ ? cell(*found, c) : std::string();
}

void print_group(rows_ref const& group, std::vector<column> const& columns, bool mark, int names,
                 std::ostream& out) {
  std::vector<std::string> winners(columns.size());
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

void print_heading(std::vector<column> const& columns, int names, std::ostream& out) {
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
  std::vector<column> const columns = columns_of(results);
  bool const tasks = !results.tasks.empty();
  int names = 14;
  for (auto const& row : results.rows) names = std::max(names, static_cast<int>(row.method.size()) + 1);
  int width = names + 6 + 6 + 9;
  for (auto const& c : columns) {
    width += c.width;
  }
  std::string const line(static_cast<std::size_t>(width), '-');
  out << results.model << ": " << results.contexts << " contexts of " << results.context << " tokens";
  if (tasks) {
    out << " on average, " << results.tasks.size() << (results.tasks.size() == 1 ? " task" : " tasks");
  } else {
    out << ", " << results.needles << " needles each, seed " << results.seed;
  }
  out << "\n\n";
  print_heading(columns, names, out);
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
  print_group(full, columns, false, names, out);
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
    print_group(group, columns, true, names, out);
  }
  out << line << "\n* best of its budget. ";
  if (tasks) {
    std::string const units = results.unit + "s";
    out << "Greedy answers, means over tasks: all " << units << " right (exact), " << units
        << " right; bits of the right\n"
           "answer's "
        << units
        << ". Asked after: once the cache was compressed, as in the columns of tasks;\n"
           "inside: one question of each context, in the prompt.\n";
  } else {
    out << "Planted digits, asked after: once the cache was compressed; inside: in the prompt.\n";
  }
}

}  // namespace tiny_llama
