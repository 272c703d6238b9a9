package lab

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// flattenRuleset makes each line of nft's listing of all tables tell the table
// and the object it is of, as "table ip t: map m: 10.0.0.1 : 80". Objects of a
// table and elements of a set are sorted, for nft lists them in no order that
// means anything. Elements that expire are left out: packets make them.
func flattenRuleset(listing string) string {
	objects := make(map[string][]string)
	var path []string
	lines := strings.Split(listing, "\n")
	for i := 0; i < len(lines); i++ {
		line, _, _ := strings.Cut(strings.TrimSpace(lines[i]), " # ") // the program that owns a table
		name := strings.Join(path, ": ") + ": "
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "elements = {"):
			text := line
			for !strings.HasSuffix(text, "}") && i+1 < len(lines) {
				i++
				text += " " + strings.TrimSpace(lines[i])
			}
			objects[name] = append(objects[name], elements(text)...)
		case line == "}":
			path = path[:max(0, len(path)-1)]
		case strings.HasSuffix(line, " {"):
			path = append(path, strings.TrimSuffix(line, " {"))
			name = strings.Join(path, ": ") + ": "
			objects[name] = append(objects[name], "")
		default:
			objects[name] = append(objects[name], line)
		}
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		for _, line := range objects[name] {
			fmt.Fprintln(&b, name+line)
		}
	}
	return b.String()
}

// elements returns those of a set that do not expire, sorted.
func elements(text string) []string {
	text = strings.TrimSuffix(strings.TrimPrefix(text, "elements = {"), "}")
	var list []string
	for element := range strings.SplitSeq(text, ",") {
		if element = strings.TrimSpace(element); element != "" && !strings.Contains(element, " expires ") {
			list = append(list, element)
		}
	}
	slices.Sort(list)
	return list
}
