#include "stream_report.hpp"

#include "output_file.hpp"
#include "table_cells.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <ostream>

namespace tiny_llama {
namespace {

/// How many parts are the first, or the last, quarter.
std::size_t quarter_of(std::size_t parts) { return std::max<std::size_t>(1, parts / 4); }

double ratio(double part, double whole) { return whole > 0 ? part / whole : -1; }

using table_cells::formatted;
using table_cells::left;
using table_cells::right;

struct column {
  char const *top, *bottom;
  int width;
};
constexpr column columns[] = {{"bits per byte:", "first", 9},
                              {"", "last", 7},
                              {"digits:", "at once", 9},
                              {"", "at end", 8},
                              {"", "of first", 9},
                              {"peak:", "entries", 9},
                              {"", "KiB", 6},
                              {"ms a token:", "first", 8},
                              {"", "last", 6},
                              {"compress", "/ read", 10}};

std::vector<std::string> cells(stream_row const& row, std::uint64_t bytes_per_entry) {
  std::size_t const parts = row.parts.size(), quarter = quarter_of(parts);
  auto const measured = [](char const* format, double value) {
    return value < 0 ? std::string("-") : formatted(format, value);
  };
  auto const percent = [&](double share) { return measured("%.1f%%", 100 * share); };
  return {measured("%.3f", row.bits_per_byte(0, quarter)),
          measured("%.3f", row.bits_per_byte(parts - quarter, parts)),
          percent(row.recall_at_once()),
          percent(row.recall_at_the_end()),
          percent(row.recall(parts - 1, 0)),
          std::to_string(row.peak_entries()),
          formatted("%.0f", static_cast<double>(row.peak_entries() * bytes_per_entry) / 1024),
          measured("%.2f", row.ms_per_token(0, quarter)),
          measured("%.2f", row.ms_per_token(parts - quarter, parts)),
          percent(row.compression_share())};
}

}  // namespace

double stream_row::bits_per_byte(std::size_t first, std::size_t last) const {
  double bits = 0, bytes = 0;
  for (std::size_t i = first; i < last; ++i) {
    bits += parts[i].bits;
    bytes += static_cast<double>(parts[i].bytes);
  }
  return ratio(bits, bytes);
}

double stream_row::ms_per_token(std::size_t first, std::size_t last) const {
  double seconds = 0, tokens = 0;
  for (std::size_t i = first; i < last; ++i) {
    seconds += parts[i].seconds;
    tokens += static_cast<double>(parts[i].tokens);
  }
  return ratio(1e3 * seconds, tokens);
}

double stream_row::compression_share() const {
  double compressing = 0, reading = 0;
  for (stream_part const& p : parts) {
    compressing += p.compress_seconds;
    reading += p.seconds;
  }
  return entries == 0 ? -1 : ratio(compressing, reading);
}

double stream_row::recall(std::size_t asked, std::size_t told) const {
  stream_part const& p = parts.at(asked);
  if (told >= p.asked.size()) return -1;
  return ratio(static_cast<double>(p.right[told]), static_cast<double>(p.asked[told]));
}

double stream_row::recall_at_once() const {
  double right = 0, asked = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (i >= parts[i].asked.size()) continue;
    right += static_cast<double>(parts[i].right[i]);
    asked += static_cast<double>(parts[i].asked[i]);
  }
  return ratio(right, asked);
}

double stream_row::recall_at_the_end() const {
  double right = 0, asked = 0;
  for (std::size_t told = 0; told < parts.back().asked.size(); ++told) {
    right += static_cast<double>(parts.back().right[told]);
    asked += static_cast<double>(parts.back().asked[told]);
  }
  return ratio(right, asked);
}

std::uint64_t stream_row::peak_entries() const {
  std::uint64_t most = 0;
  for (stream_part const& p : parts) most = std::max(most, p.longest_entries);
  return most;
}

void print_table(stream_report const& results, std::ostream& out) {
  std::size_t const parts = results.rows.empty() ? 0 : results.rows.front().parts.size();
  out << results.model << ": " << results.contexts << (results.contexts == 1 ? " text of " : " texts of ")
      << results.length << " tokens, ";
  if (results.mode == "turns") {
    out << parts << " turns";
    if (results.shared != 0)
      out << ", the first " << results.shared << " of them shared by two conversations";
  } else {
    out << (results.mode == "generate" ? "read one at a time" : "read in chunks") << ", " << parts
        << " numbers told on the way";
  }
  out << "; compressed after ";
  if (results.chunk != 0) {
    out << "every " << results.chunk << " tokens";
  } else {
    out << "each turn";
  }
  out << (results.renumbered ? ", positions renumbered" : "") << "; seed " << results.seed << "\n\n";

  int names = 14;
  for (stream_row const& row : results.rows) names = std::max(names, static_cast<int>(row.method.size()) + 1);
  int width = names + 12;
  for (column const& c : columns) width += c.width;
  // Headings of several columns begin two places behind the left end of the first.
  std::string top(static_cast<std::size_t>(names + 12), ' ');
  std::string bottom = left("method", names) + left("kind", 6) + right("budget", 6);
  for (column const& c : columns) {
    if (c.top[0] != '\0') top = left(top, static_cast<int>(bottom.size()) + 2) + c.top;
    bottom += right(c.bottom, c.width);
  }
  out << top << '\n' << bottom << '\n';
  std::string const line(static_cast<std::size_t>(width), '-');
  std::vector<double> budgets;
  for (stream_row const& row : results.rows)
    if (std::find(budgets.begin(), budgets.end(), row.budget) == budgets.end()) budgets.push_back(row.budget);
  for (double const budget : budgets) {
    out << line << '\n';
    for (stream_row const& row : results.rows) {
      if (row.budget < budget || row.budget > budget) continue;
      out << left(row.method, names) << left(row.kind, 6) << right(formatted("%.0f%%", row.budget * 100), 6);
      std::vector<std::string> const all = cells(row, results.bytes_per_entry);
      for (std::size_t i = 0; i < all.size(); ++i) out << right(all[i], columns[i].width);
      out << '\n';
    }
  }
  out << line << "\nfirst, last: " << quarter_of(parts) << " of " << parts
      << " parts. Digits: each number asked for at the end of the part that tells it,\n"
         "all numbers at the end of the text, the first number at the end of the text. compress / read:\n"
         "the time of compressions over that of reading.\n";
  if (results.shared == 0) return;
  out << "\nWhat two conversations hold at the end of a turn, with one frozen copy of what they share, and "
         "with two:\n";
  for (stream_row const& row : results.rows) {
    if (row.shared_entries == 0) continue;
    auto const size = [&](std::uint64_t n) {
      return formatted("%.0f KiB", static_cast<double>(n * results.bytes_per_entry) / 1024);
    };
    out << left(row.method, names) << left("", 6) << right(formatted("%.0f%%", row.budget * 100), 6) << "   "
        << size(2 * row.entries - row.shared_entries) << ", " << size(2 * row.entries) << '\n';
  }
}

std::string to_json(stream_report const& results) {
  using ordered = nlohmann::ordered_json;
  auto const figure = [](double value) { return value >= 0 ? ordered(value) : ordered(nullptr); };
  ordered rows = ordered::array();
  for (stream_row const& row : results.rows) {
    ordered item;
    item["method"] = row.method;
    item["kind"] = row.kind;
    item["budget"] = row.budget;
    item["entries"] = row.entries;
    item["shared_entries"] = row.shared_entries;
    item["compression_share"] = figure(row.compression_share());
    item["parts"] = ordered::array();
    for (std::size_t i = 0; i < row.parts.size(); ++i) {
      ordered part;
      part["tokens"] = row.parts[i].tokens;
      part["bits_per_byte"] = figure(row.bits_per_byte(i, i + 1));
      part["ms_per_token"] = figure(row.ms_per_token(i, i + 1));
      part["compress_seconds"] = row.parts[i].compress_seconds;
      part["longest_entries"] = row.parts[i].longest_entries;
      part["recall"] = ordered::array();  // by the part that told the number
      for (std::size_t told = 0; told <= i; ++told) part["recall"].push_back(figure(row.recall(i, told)));
      item["parts"].push_back(std::move(part));
    }
    rows.push_back(std::move(item));
  }
  ordered out;
  out["model"] = results.model;
  out["mode"] = results.mode;
  out["length"] = results.length;
  out["contexts"] = results.contexts;
  out["chunk"] = results.chunk;
  out["renumbered"] = results.renumbered;
  out["shared"] = results.shared;
  out["seed"] = results.seed;
  out["bytes_per_entry"] = results.bytes_per_entry;
  out["streams"] = std::move(rows);
  return out.dump(2, ' ', false, ordered::error_handler_t::replace) + "\n";
}

void write_json(stream_report const& results, std::string const& path) { write_file(path, to_json(results)); }

}  // namespace tiny_llama
