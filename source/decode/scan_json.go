package decode

import (
	"strconv"

	"svcproxy.dev/svcproxy/source"
)

// member adds to an object in JSON. Unlike encoding/json it sees keys that are there twice.
func (s *scanner) member(object map[string]any, key string, v any, at int) {
	if _, twice := object[key]; twice {
		switch len(s.twice) {
		case maxFaults:
		case maxFaults - 1:
			s.twice = append(s.twice, textFault{off: at, msg: "more keys are in their object twice"})
		default:
			s.twice = append(s.twice, textFault{off: at, msg: "key " + source.Excerpt(key) + " is already in this object"})
		}
	}
	object[key] = v
}

// word returns the value of what is not in quotes or brackets, in JSON. It keeps the
// difference between integers and other numbers that TOML makes: 80 is an int64;
// 80.0, 8e1 and what is too large for one are a float64.
func word(s string) any {
	switch s {
	case "true":
		return true
	case "false":
		return false
	case "null":
		return nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n
	}
	f, _ := strconv.ParseFloat(s, 64) // out of range: infinite, which no key takes
	return f
}
