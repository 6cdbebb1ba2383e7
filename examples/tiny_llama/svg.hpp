// A few SVG strokes: just what the chart needs, with fixed number formatting and escaped text.
#pragma once

#include <array>
#include <cstdio>
#include <string>
#include <string_view>

namespace tiny_llama {

// Okabe and Ito's colours: told apart with colour-blind eyes too; the marker shapes serve print.
inline constexpr std::array<std::string_view, 6> palette{"#0072b2", "#d55e00", "#009e73",
                                                         "#cc79a7", "#e69f00", "#56b4e9"};

struct point {
  double x, y;
};

class svg {
public:
  svg(int width, int height) {
    auto const w = std::to_string(width), h = std::to_string(height);
    text_ =
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + w + "\" height=\"" + h + "\" viewBox=\"0 0 " +
        w + " " + h +
        "\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" font-size=\"12\">\n<rect width=\"" +
        w + "\" height=\"" + h + "\" fill=\"#ffffff\"/>\n";
  }

  void line(point a, point b, std::string_view colour, double width, std::string_view dashes = {}) {
    text_ += "<line x1=\"" + number(a.x) + "\" y1=\"" + number(a.y) + "\" x2=\"" + number(b.x) + "\" y2=\"" +
             number(b.y) + "\"" + stroke(colour, width, dashes) + "/>\n";
  }

  template <class Points>
  void polyline(Points const& points, std::string_view colour, double width, std::string_view dashes = {}) {
    text_ += "<polyline points=\"" + joined(points) + "\" fill=\"none\" stroke-linejoin=\"round\"" +
             stroke(colour, width, dashes) + "/>\n";
  }

  /// Filled, with a white rim that keeps crossing lines apart.
  template <class Points> void polygon(Points const& points, std::string_view fill) {
    text_ += "<polygon points=\"" + joined(points) + "\" fill=\"" + std::string(fill) + "\"" + rim + "/>\n";
  }

  void circle(point centre, double radius, std::string_view fill) {
    text_ += "<circle cx=\"" + number(centre.x) + "\" cy=\"" + number(centre.y) + "\" r=\"" + number(radius) +
             "\" fill=\"" + std::string(fill) + "\"" + rim + "/>\n";
  }

  /// anchor: start, middle or end. extra: further attributes, each with a leading space.
  void text(point at, std::string_view words, std::string_view anchor = "start",
            std::string_view extra = {}) {
    text_ += "<text x=\"" + number(at.x) + "\" y=\"" + number(at.y) + "\" text-anchor=\"" +
             std::string(anchor) + "\"" + std::string(extra) + ">" + escaped(words) + "</text>\n";
  }

  std::string finish() && { return std::move(text_) + "</svg>\n"; }

  static std::string number(double value) {
    char digits[48];
    std::snprintf(digits, sizeof digits, "%.1f", value);
    return digits;
  }

  static std::string escaped(std::string_view words) {
    std::string out;
    for (char const c : words) {
      switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default: out += (c >= ' ' && c <= '~') ? c : '?';  // a name from a folder may be in any encoding
      }
    }
    return out;
  }

private:
  static constexpr char const* rim = " stroke=\"#ffffff\" stroke-width=\"1\"";

  template <class Points> static std::string joined(Points const& points) {
    std::string out;
    for (auto const& p : points) {
      out += (out.empty() ? "" : " ") + number(p.x) + "," + number(p.y);
    }
    return out;
  }

  static std::string stroke(std::string_view colour, double width, std::string_view dashes) {
    std::string out = " stroke=\"" + std::string(colour) + "\" stroke-width=\"" + number(width) + "\"";
    return dashes.empty() ? out : out + " stroke-dasharray=\"" + std::string(dashes) + "\"";
  }

  std::string text_;
};

}  // namespace tiny_llama
