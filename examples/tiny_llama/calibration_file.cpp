#include "calibration_file.hpp"

#include "files.hpp"
#include "json_text.hpp"
#include "output_file.hpp"

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace tiny_llama {
namespace {

using kvmeld::calibrate::calibration;
using kvmeld::calibrate::cost_curve;
using ordered = nlohmann::ordered_json;

constexpr int version = 1;
constexpr char const* version_name = "kvmeld_calibration";
constexpr std::uint64_t max_bytes = 16u << 20;

/// Fields of one object of the file; every refusal names the field.
class reader {
public:
  reader(std::string const& file, json const& object, std::string where)
      : file_(file), object_(object), where_(std::move(where)) {
    if (!object.is_object()) refuse(where_.empty() ? "its text" : where_, object, "an object");
  }

  std::uint32_t count(char const* name) const {
    json const& value = field(name);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > 0xffffffffu) {
      refuse(path(name), value, "a whole number from 0 to 4294967295");
    }
    return value.get<std::uint32_t>();
  }
  double number(char const* name) const { return number(field(name), path(name)); }
  std::string text(char const* name) const {
    json const& value = field(name);
    if (!value.is_string()) refuse(path(name), value, "a text");
    return value.get<std::string>();
  }
  std::vector<double> numbers(char const* name) const { return numbers(list(name), path(name)); }
  std::vector<double> numbers(json const& values, std::string const& name) const {
    if (!values.is_array()) refuse(name, values, "a list of numbers");
    std::vector<double> out;
    for (json const& value : values)
      out.push_back(number(value, name + "[" + std::to_string(out.size()) + "]"));
    return out;
  }
  json const& list(char const* name) const {
    json const& value = field(name);
    if (!value.is_array()) refuse(path(name), value, "a list");
    return value;
  }
  std::string path(std::string const& name) const { return where_.empty() ? name : where_ + "." + name; }

private:
  [[noreturn]] void refuse(std::string const& name, json const& value, char const* needed) const {
    throw model_error(file_, name + " is " + shown(value) + "; it must be " + needed);
  }
  json const& field(char const* name) const {
    auto const at = object_.find(name);
    if (at == object_.end()) throw model_error(file_, path(name) + " is missing");
    return *at;
  }
  double number(json const& value, std::string const& name) const {
    if (!value.is_number() || !std::isfinite(value.get<double>())) refuse(name, value, "a number");
    return value.get<double>();
  }

  std::string const& file_;
  json const& object_;
  std::string where_;
};

std::string element(std::string const& list, std::size_t i) { return list + "[" + std::to_string(i) + "]"; }

}  // namespace

std::string to_json(calibration const& c) {
  ordered out;
  out[version_name] = version;
  out["model"] = c.model;
  out["layers"] = c.of.layers;
  out["kv_heads"] = c.of.kv_heads;
  out["group"] = c.of.queries_per_kv_head;
  out["key_dim"] = c.of.key_dim;
  out["value_dim"] = c.of.value_dim;
  out["tokens"] = c.tokens;
  out["samples"] = c.samples;
  out["unmatched"] = c.unmatched;
  out["thresholds"] = ordered::array();
  for (auto const& t : c.thresholds) out["thresholds"].push_back({{"ratio", t.ratio}, {"theta", t.theta}});
  out["methods"] = ordered::array();
  for (auto const& m : c.methods) {
    ordered heads = ordered::array();
    for (cost_curve const& curve : m.curves) heads.push_back({{"share", curve.share}, {"cost", curve.cost}});
    out["methods"].push_back({{"method", m.method}, {"heads", std::move(heads)}});
  }
  return out.dump(1, ' ', false, ordered::error_handler_t::replace) + "\n";
}

calibration parse_calibration(std::string const& path, std::string const& text) {
  json const all = parse_json(path, "text", text);
  reader const r(path, all, "");
  std::string const wanted =
      "; it must be " + std::to_string(version) + ", the version of the format that is read";
  if (!all.contains(version_name)) {
    std::string const other = all.contains("version") ? " (version is " + shown(all["version"]) + ")" : "";
    throw model_error(path, std::string(version_name) + " is missing" + other + wanted);
  }
  if (std::uint32_t const found = r.count(version_name); found != version) {
    throw model_error(path, std::string(version_name) + " is " + std::to_string(found) + wanted);
  }
  calibration c;
  c.model = r.text("model");
  c.of = {r.count("layers"), r.count("kv_heads"), r.count("group"), r.count("key_dim"), r.count("value_dim")};
  c.tokens = r.count("tokens");
  c.samples = r.count("samples");
  c.unmatched = r.numbers("unmatched");
  for (json const& t : r.list("thresholds")) {
    std::string const name = element("thresholds", c.thresholds.size());
    reader const in(path, t, name);
    c.thresholds.push_back({in.number("ratio"), {}});
    auto& theta = c.thresholds.back().theta;
    for (json const& layer : in.list("theta")) {
      theta.push_back(in.numbers(layer, element(in.path("theta"), theta.size())));
    }
  }
  for (json const& m : r.list("methods")) {
    reader const in(path, m, element("methods", c.methods.size()));
    c.methods.push_back({in.text("method"), {}});
    auto& curves = c.methods.back().curves;
    for (json const& h : in.list("heads")) {
      reader const head(path, h, element(in.path("heads"), curves.size()));
      curves.push_back({head.numbers("share"), head.numbers("cost")});
    }
  }
  kvmeld::shape const own{c.of.layers,    1, c.of.kv_heads, c.of.queries_per_kv_head, c.of.key_dim,
                          c.of.value_dim, 1};
  if (std::string const problem = calibration_problem(c, own); !problem.empty())
    throw model_error(path, problem);
  return c;
}

calibration load_calibration(std::string const& path) {
  return parse_calibration(path, read_file(path, max_bytes));
}

void save_calibration(calibration const& c, std::string const& path) { write_file(path, to_json(c)); }

}  // namespace tiny_llama
