package decode

import (
	"encoding/json"
	"net/netip"
	"regexp"
	"strings"
	"unicode"

	"svcproxy.dev/svcproxy/source"
)

// What is not TOML or JSON is often something else that a reader knows by name.
// The parsers say only which byte they did not expect.
var (
	conflict = regexp.MustCompile(`^(<{7}|\|{7}|={7}|>{7})( |$)`)
	template = regexp.MustCompile(`\{\{[^{}="]*\}\}|\{%|<%|\$\{[^}]*\}|\$\([^)]*\)|\$[A-Za-z_]+`)
	yamlLine = regexp.MustCompile(`^(---\s*$|- |[ \t]*(- )?["']?[A-Za-z_][\w./-]*["']?:(\s|$))`)
	tomlLine = regexp.MustCompile(`^(\[\[?\s*["']?[A-Za-z_]|[A-Za-z_][\w.-]*\s*=|#)`)
	markup   = regexp.MustCompile(`^<[?!A-Za-z]`)
)

const notFilledIn = "this is a template that has not been filled in"

// guess makes a fault of the parsers say what the text probably is, or was meant
// to be. What it does not know it leaves as it is.
func guess(text string, isJSON bool, f textFault) textFault {
	f.off = min(max(f.off, 0), len(text)) // as the parsers have it, it may be beside the text
	begin := strings.LastIndexByte(text[:f.off], '\n') + 1
	line := lineAt(text, f.off)
	start := strings.TrimLeft(text, " \t\r\n")
	first := len(text)-len(start) >= begin // the fault is in the first line that holds something
	switch at := template.FindStringIndex(line); {
	case conflict.MatchString(line):
		return textFault{begin, "a merge conflict that has not been resolved", "keep one side, and remove the lines of <<<<<<<, ======= and >>>>>>>"}
	case at != nil && strings.Count(line[:at[0]], `"`)%2 == 0 && begin+at[0] <= f.off:
		return textFault{begin + at[0], notFilledIn, ""}
	case markup.MatchString(start):
		return textFault{f.off, "the text is XML or HTML", map[bool]string{true: "want JSON", false: "want TOML"}[isJSON]}
	case isJSON:
		return guessJSON(text, line, first, f)
	case strings.HasPrefix(start, "{") || strings.HasPrefix(start, "[") && json.Valid([]byte(start)):
		return textFault{len(text) - len(start), "the text is JSON, and the name of the file says TOML", "give it a name that ends in .json"}
	case first && yamlLine.MatchString(line):
		return textFault{f.off, "the text is YAML", `want TOML, with lines such as name = "web"`}
	}
	return guessTOML(text, f)
}

// lineAt returns the line that an offset is in.
func lineAt(text string, off int) string {
	line, _, _ := strings.Cut(text[strings.LastIndexByte(text[:off], '\n')+1:], "\n")
	return strings.TrimSuffix(line, "\r")
}

// guessTOML looks at the word where a text stops being TOML.
func guessTOML(text string, f textFault) textFault {
	word := wordAt(text, f.off)
	rest := text[f.off:]
	switch {
	case strings.HasPrefix(rest, "//") || strings.HasPrefix(rest, "/*") || strings.HasPrefix(rest, ";"):
		return textFault{f.off, source.Excerpt(rest[:1]) + " begins no comment", "comments begin with #"}
	case strings.HasPrefix(rest, "“") || strings.HasPrefix(rest, "”") || strings.HasPrefix(rest, "‘") || strings.HasPrefix(rest, "„"):
		return textFault{f.off, "a typographic quote", "write " + `"`}
	case strings.HasPrefix(rest, ":") && strings.HasPrefix(f.msg, "expected '.' or '='"):
		return textFault{f.off, "a colon behind a key", "write ="}
	case strings.HasPrefix(f.msg, "strings cannot contain newlines"):
		return textFault{f.off, "the string has no closing quote on its line", ""}
	case brokenValue.MatchString(f.msg) && tableLine.MatchString(lineAt(text, f.off)):
		return textFault{f.off, "a header within a value", "close the list or table above it"}
	case brokenValue.MatchString(f.msg) && word.text != "" && word.isValue:
		return word.fault(f)
	case headerLine.MatchString(lineAt(text, f.off)):
		f.hint = "write [[services]]"
	case strings.HasSuffix(f.msg, "has already been defined.") && strings.Contains(f.msg, "'services"):
		f.msg, f.hint = strings.TrimSuffix(f.msg, "."), "begin each further service with [[services]]"
	case twiceAList.MatchString(f.msg):
		key := twiceAList.FindStringSubmatch(f.msg)[1]
		if f.msg, f.hint = key+" is written twice", "leave one of them out"; strings.HasPrefix(lineAt(text, f.off), "[") {
			f.msg, f.hint = key+" stands above as a list already", "write all of it in the list, or each part below [[services."+key+"]]"
		}
	}
	return f
}

var (
	brokenValue = regexp.MustCompile(`^(expected value|Invalid |expected a top-level item|expected a comma|unexpected)`) // of the parser, about values
	tableLine   = regexp.MustCompile(`^\[\[?[A-Za-z_][\w.]*\]\]?\s*$`)
	// twiceAList matches what the parser says of a list that is written both ways.
	twiceAList = regexp.MustCompile(`^Key 'services\.(ports|endpoints)' was already created and cannot be used as an array`)

	headerLine = regexp.MustCompile(`^\[(services\]\]|\[services\])\s*$`)
)

// A bareWord is what stands without quotes between two marks of TOML.
type bareWord struct {
	off     int
	text    string
	isValue bool // it follows an equals sign, a comma or a bracket
}

// wordAt returns the bare word that an offset is in. Addresses and ports have
// colons and dots in them.
func wordAt(text string, off int) bareWord {
	const ends = "=,[]{}#\"' \t\r\n"
	begin := strings.LastIndexAny(text[:off], ends) + 1
	end := len(text)
	if n := strings.IndexAny(text[off:], ends); n >= 0 {
		end = off + n
	}
	before := strings.TrimRight(text[:begin], " \t\r\n")
	isValue := before != "" && strings.IndexByte("=:,[", before[len(before)-1]) >= 0
	return bareWord{begin, text[begin:end], isValue}
}

// fault says what a word without quotes should be; f, if it does not know.
func (w bareWord) fault(f textFault) textFault {
	switch lower := strings.ToLower(w.text); {
	case lower == "true" || lower == "yes" || lower == "on":
		return textFault{w.off, source.Excerpt(w.text) + " is no value of TOML", "write true"}
	case lower == "false" || lower == "no" || lower == "off":
		return textFault{w.off, source.Excerpt(w.text) + " is no value of TOML", "write false"}
	case lower == "null" || lower == "none" || lower == "nil":
		return textFault{w.off, source.Excerpt(w.text) + " is no value of TOML", "leave the key out"}
	case looksLikeAddr(w.text), unicode.IsLetter(rune(w.text[0])), durationWord.MatchString(w.text):
		return w.unquoted()
	}
	return f
}

func (w bareWord) unquoted() textFault {
	return textFault{w.off, source.Excerpt(w.text) + " stands without quotes", "write " + source.Excerpt(w.text)}
}

var durationWord = regexp.MustCompile(`^[0-9.]+(ns|us|ms|s|m|h)$`)

func looksLikeAddr(s string) bool {
	if _, err := netip.ParsePrefix(s); err == nil || isAddr(s) {
		return true
	}
	return strings.Count(s, ".") >= 2 && strings.Trim(s, "0123456789.:/") == "" || strings.HasPrefix(s, "::")
}

// guessJSON looks at the place where a text stops being JSON.
func guessJSON(text, line string, first bool, f textFault) textFault {
	rest := text[min(f.off, len(text)):]
	before := strings.TrimRight(text[:f.off], " \t\r\n")
	switch {
	case first && tomlLine.MatchString(line) && !json.Valid([]byte(line)):
		return textFault{f.off, "the text is TOML, and the name of the file says JSON", "give it a name that ends in .toml"}
	case first && yamlLine.MatchString(line):
		return textFault{f.off, "the text is YAML", `want JSON, as in {"services": []}`}
	case strings.HasPrefix(rest, "//"), strings.HasPrefix(rest, "/*"), strings.HasPrefix(rest, "#"):
		return textFault{f.off, "JSON has no comments", ""}
	case strings.HasPrefix(rest, "'"):
		return textFault{f.off, "a single quote", "JSON has double quotes only"}
	case strings.HasSuffix(before, ",") && (strings.HasPrefix(rest, "}") || strings.HasPrefix(rest, "]")):
		return textFault{len(before) - 1, "a comma behind the last element", "JSON has commas only between elements"}
	case strings.HasPrefix(rest, `"`) && strings.HasPrefix(f.msg, `invalid character '"' after`):
		f.hint = "a comma is missing"
	case strings.HasPrefix(rest, "True"), strings.HasPrefix(rest, "False"), strings.HasPrefix(rest, "None"):
		f.hint = "JSON writes true, false and null"
	case strings.HasSuffix(f.msg, "beginning of object key string"):
		f.hint = "want a key in double quotes"
	default:
		if word := wordAt(text, f.off); word.isValue && word.text != "" && (looksLikeAddr(word.text) || unicode.IsLetter(rune(word.text[0]))) {
			return word.unquoted()
		}
	}
	return f
}

func isAddr(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}
