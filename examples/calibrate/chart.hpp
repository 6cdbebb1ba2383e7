// A calibration as a picture.
#pragma once

#include <kvmeld/calibrate/calibration.hpp>

#include <string>

namespace calibrating {

/// Left: KVMerger's thresholds by layer, a dot per sample. Right: which heads each method needs, beside
/// Chelsea's statistic.
std::string to_chart(kvmeld::calibrate::calibration const& c);

}  // namespace calibrating
