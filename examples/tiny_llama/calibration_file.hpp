// Calibrations as JSON files: a version, the model's shape, and what was measured.
#pragma once

#include <kvmeld/calibrate/calibration.hpp>

#include <string>

namespace tiny_llama {

/// The calibration as a JSON text.
std::string to_json(kvmeld::calibrate::calibration const& c);

/// Reads the text of to_json; `path` serves messages. Throws model_error for what is missing, of another kind
/// or version, and for what contradicts itself (calibration_problem). Whether it fits a model is for the
/// caller to ask.
kvmeld::calibrate::calibration parse_calibration(std::string const& path, std::string const& text);

/// Reads a file of at most 16 MiB. Throws model_error.
kvmeld::calibrate::calibration load_calibration(std::string const& path);

/// Writes beside `path` and renames. Throws std::runtime_error.
void save_calibration(kvmeld::calibrate::calibration const& c, std::string const& path);

}  // namespace tiny_llama
