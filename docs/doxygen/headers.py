"""Headers as Doxygen shall see them, line for line:

- a header's folder is its group, and the first comment of a file is the file's description;
- the inline namespace goes, and so does what is not public: internal.txt, `detail`, phases, private and protected members;
- members that a contract asks of every part of a room (contracts.txt) say so, where nothing else is said of them;
- of several names declared together each gets the comment, and aligned lists in comments become lists.
"""
import pathlib
import re

HERE = pathlib.Path(__file__).parent

# Whose contracts hold in a group, where it is not the group's own, or in a header.
ROOMS = {
    "core": ["element"],
    "exec": ["team", "executor"],
    "queries": [],
    "rounds": [],
    "policy": [],
    "save": [],
    "sequences": [],
    "backend": ["team", "element", "executor"],
    "compose": [],
    "compose/any_score.hpp": ["score"],
    "compose/any_selector.hpp": ["select"],
    "compose/any_identifier.hpp": ["identify"],
    "compose/any_merge.hpp": ["merge"],
    "cache": [],
    "testing/lane_executor.hpp": ["executor"],
    "layout/paged.hpp": ["layout", "pages"],
}


def read_list(path):
    lines = (line.strip() for line in path.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def read_contracts():
    """{room: {member: sentence}} from contracts.txt."""
    contracts, room = {}, None
    for line in read_list(HERE / "contracts.txt"):
        if line.startswith("["):
            room = contracts.setdefault(line.strip("[]"), {})
        else:
            name, sentence = line.split(None, 1)
            room[name] = sentence
    return contracts


def group_of(header):
    """The group of a header, from its folder below include/kvmeld."""
    folder = header.parent.as_posix()
    if header.as_posix() in ("identify/admit.hpp", "identify/admission.hpp"):
        return "admit"
    if folder.startswith("backend") or header.name in ("cuda.cuh", "kokkos.hpp"):
        return "backend"
    if folder == ".":
        return {"testing.hpp": "testing", "calibrate.hpp": "calibrate"}.get(header.name, "core")
    return folder.split("/")[0]


# --- what is said of a name ------------------------------------------------------------------------------------

KIND = r"(?:mutable )?(?:static constexpr )?(?:constexpr )?[\w:<>]+(?: const\*|\*)? "
VALUE = r"(?: = [^,;(){}]+|\{\})?"
SEVERAL = re.compile(rf"^(\s+)({KIND})(\w+{VALUE}(?:, \w+{VALUE})+);(.*)$")
CONSTANT = re.compile(r"^\s+static constexpr (?:bool|int|float|char const\*|std::uint32_t|\w+_facts) (\w+)(?: =|\{)")
FUNCTION = re.compile(r"^\s+(?:template <[^{]*> )?(?:KVMELD_HD |__device__ |KOKKOS_\w+ )?(?:static )?(?:virtual )?(?:constexpr )?"
                      r"(?!return |else |using )[\w:<>&*]+ (?:const[&*]? |[&*] )?(\w+)\(")
ALIAS = re.compile(r"^\s+using (\w+) =")
TEMPLATE = re.compile(r"^\s*template <[^{};]*>$")
LISTED = re.compile(r"^(\s*///) +(`[^`]+`(?:, `[^`]+`)*|\w+)(?:  +|$)(?=\S)")


def comment_before(lines, i):
    """The text of the /// block that ends right before line i."""
    first = i
    while first > 0 and lines[first - 1].strip().startswith("///"):
        first -= 1
    return " ".join(line.strip()[3:].strip() for line in lines[first:i])


def declared_name(line, following):
    """What a line declares, as far as a contract may name it."""
    if found := CONSTANT.match(line) or FUNCTION.match(line) or ALIAS.match(line):
        return found.group(1)
    if TEMPLATE.match(line) and (found := FUNCTION.match(following)):
        return found.group(1)
    return None


def split_declarators(lines, i):
    """Doxygen gives a comment to the first of several names declared together: each gets the same one here."""
    found = SEVERAL.match(lines[i])
    if not found:
        return [lines[i]]
    indent, kind, names, after = found.groups()
    after = after.strip()
    before = comment_before(lines, i)
    out = []
    for n, name in enumerate(re.split(r",\s*", names)):
        text = after[4:].strip() if after.startswith("///<") else before if n else ""
        out.append(f"{indent}{kind}{name};" + (f" /**< {text} */" if text else ""))
    return out


def join_declarators(lines):
    """Names declared together over two lines, on the first of them."""
    for i in range(len(lines) - 1):
        joined = lines[i] + " " + lines[i + 1].strip()
        if lines[i].endswith(",") and re.match(rf"^\s+{KIND}\w+", lines[i]) and SEVERAL.match(joined):
            lines[i], lines[i + 1] = joined, ""


def add_contracts(lines, contract):
    """One declaration a name, and what the room's contract says of members that no comment precedes."""
    out = []
    for i, line in enumerate(lines):
        before = lines[i - 1].strip() if i else ""
        told = before.startswith("//") or "///<" in line or TEMPLATE.match(before)
        parts = split_declarators(lines, i)
        for n, part in enumerate(parts):
            name = declared_name(part, lines[i + 1] if i + 1 < len(lines) else "")
            if name is None or told or name not in contract:
                continue
            indent = re.match(r"\s*", part).group(0)
            parts[n] = f"{indent}/** {contract[name]} */ {part.strip()}"
        out.append("".join(parts))
    return out


def mark_list(line):
    """`name(...)`, spaces, what it does: an item. No `#` links to a member."""
    if "///" in line:
        line = re.sub(r"#(?=[A-Za-z])", r"\#", line)
    found = LISTED.match(line)
    if not found or (found.group(2)[0] != "`" and not line.startswith(found.group(1) + "   ")):
        return line
    return f"{found.group(1)} - {found.group(2)}: {line[found.end():]}"


# --- what is not shown -----------------------------------------------------------------------------------------

TYPE = re.compile(r"(?:template <.*> )?(?:struct|class|enum class) (\w+)(<)?")


def hide(lines, first, last):
    """Hides a declaration, and the comment and template head before it."""
    while first > 0 and (lines[first - 1].startswith("///") or TEMPLATE.match(lines[first - 1])):
        first -= 1
    lines[first] = "/** @cond */ " + lines[first]
    lines[last] += " /** @endcond */"


def end_of(lines, i):
    """The last line of a type that begins at line i."""
    while not lines[i].endswith(("{", ";")):
        i += 1
    if lines[i].endswith("{"):
        while not lines[i].startswith("};"):
            i += 1
    return i


def hide_what_is_not_public(lines, internal_names):
    """Namespaces, phases, internal types, what makes traits true, private sections."""
    hidden_until = None
    for i, line in enumerate(lines):
        if hidden_until is not None:
            if line == hidden_until:
                lines[i] += " /** @endcond */"
                hidden_until = None
            continue
        if found := re.match(r"namespace (\w+) \{$", line):
            if found.group(1) == "detail" or found.group(1) in internal_names:
                hide(lines, i, i)
                lines[i] = lines[i].removesuffix(" /** @endcond */")
                hidden_until = f"}}  // namespace {found.group(1)}"
        elif found := TYPE.match(line):
            trait = found.group(2) and re.search(r"std::void_t|std::enable_if_t|std::bool_constant",
                                                 " ".join(lines[i:end_of(lines, i) + 1]))
            if found.group(1).endswith("_phase") or found.group(1) in internal_names or trait:
                hide(lines, i, end_of(lines, i))
    hidden = False
    for i, line in enumerate(lines):
        if line in ("private:", "protected:"):
            lines[i] = "private:" if hidden else "/** @cond */ private:"
            hidden = True
        elif hidden and line.startswith(("};", "public:")):
            lines[i] = "/** @endcond */ " + line
            hidden = False


def undocumented_types(lines):
    """Types without a comment, by line. Doxygen 1.9.4 says nothing of those that have no members."""
    depth = 0
    for i, line in enumerate(lines):
        depth += line.count("@cond")
        found = TYPE.match(line)
        if found and depth == 0 and not found.group(2) and not (line.endswith(";") and "{" not in line):
            first = i - 1 if TEMPLATE.match(lines[i - 1]) else i
            if not lines[first - 1].startswith("///"):
                yield i + 1, found.group(1)
        depth -= line.count("@endcond")


# --- all of it -------------------------------------------------------------------------------------------------


def prepare_header(lines, group, contract, internal_names):
    if lines[0].startswith("// SPDX"):
        lines[0] = ""
    if "#pragma once" in lines:
        once = lines.index("#pragma once")
        first = 0 if lines[0] else 1
        if first < once and all(line.startswith("//") for line in lines[first:once]):
            lines[first:once] = ["///" + line[2:] for line in lines[first:once]]
            lines[once] = "/// @file"
    join_declarators(lines)
    lines = add_contracts([mark_list(line) for line in lines], contract)
    hide_what_is_not_public(lines, internal_names)
    problems = list(undocumented_types(lines))
    opened = f"/** @addtogroup {group} */ /** @{{ */"
    for i, line in enumerate(lines):
        if line == "inline namespace KVMELD_ABI {":
            lines[i] = opened
        elif line == "}  // namespace KVMELD_ABI":
            lines[i] = "/** @} */"
        elif line == "inline namespace KVMELD_ABI {}" or line.startswith("#define KVMELD_ABI"):
            lines[i] = ""
            if line.endswith("\\"):
                lines[i + 1] = ""
        elif group == "preset" and "namespace preset" not in line:  # methods have the same names, in namespaces of theirs
            continue
        elif re.match(r"namespace (?!kvmeld )\w+ \{$", line):  # a group reaches no further than its namespace
            lines[i] += " " + opened
        elif re.match(r"\}  // namespace (?!kvmeld$)\w+$", line):
            lines[i] = "/** @} */ " + line
    return lines, problems


def prepare_headers(source, out):
    """Writes what is public below out/include; returns the headers it is from."""
    roots = [source / root / "kvmeld" for root in ("include", "testing/include", "tools/calibrate/include")]
    listed = read_list(HERE / "internal.txt")
    internal_names = {line[2:] for line in listed if line.startswith("::")}
    internal = set()
    for pattern in (line for line in listed if not line.startswith("::")):
        found = [path for root in roots for path in root.glob(pattern)]
        if not found:
            raise SystemExit(f"internal.txt: {pattern} names no header")
        internal |= set(found)
    contracts = read_contracts()
    shown, problems = set(), []
    paths = {path.relative_to(root): path for root in roots for kind in ("*.hpp", "*.cuh") for path in root.rglob(kind)}
    for name, path in sorted(paths.items()):
        if path in internal or any(folder in internal for folder in path.parents):
            continue
        group = group_of(name)
        contract = dict(contracts["all"])
        for room in ROOMS.get(name.as_posix(), ROOMS.get(group, [group])):
            contract.update(contracts.get(room, {}))
        lines, found = prepare_header(path.read_text().splitlines(), group, contract, internal_names)
        problems += [f"{path}:{line}: {what} is not documented" for line, what in found]
        copy = out / "include" / "kvmeld" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text("\n".join(lines) + "\n")
        shown.add(path.resolve())
    if problems:
        raise SystemExit("\n".join(problems))
    return shown
