//go:build netns

package nftables_test

import (
	"regexp"
	"strings"
)

// objects lists our table as nft does: what is in it, by the names that Plan gives.
func (h *host) objects() map[string]string {
	h.Helper()
	family, name, _ := strings.Cut(h.table(), " ")
	all := map[string]string{}
	if !strings.Contains(run(h, "nft", "list", "tables"), "table "+h.table()+"\n") {
		return all
	}
	text := run(h, "nft", "list", "table", family, name)
	all["table "+h.table()] = strings.Join(tableLines.FindAllString(text, -1), "\n")
	for _, o := range tableObjects.FindAllStringSubmatch(text, -1) {
		kind, name, body := o[1], o[2], o[3]
		if kind == "chain" {
			all["chain "+h.table()+" "+name] = body
			continue
		}
		definition, elements, _ := strings.Cut(body, "elements = { ")
		all["set "+h.table()+" "+name] = kind + definition
		for e := range strings.SplitSeq(betweenElements.ReplaceAllString(strings.TrimSuffix(strings.TrimSpace(elements), " }"), "\n"), "\n") {
			if e != "" {
				object, holds := h.named("element " + h.table() + " " + name + " { " + e + " }")
				all[object] = holds
			}
		}
	}
	return all
}

var (
	tableLines      = regexp.MustCompile(`(?m)^\t(?:flags|comment) .*$`)
	tableObjects    = regexp.MustCompile(`(?ms)^\t(chain|set|map) (\S+) \{\n(.*?)^\t\}`)
	betweenElements = regexp.MustCompile(`,\s+`)
)

// named returns the key of an element as part of its set, and what follows it.
func (h *host) named(planned string) (name, holds string) {
	element, isElement := strings.CutPrefix(planned, "element "+h.table()+" ")
	if !isElement {
		return planned, ""
	}
	set, text, _ := strings.Cut(strings.TrimSuffix(element, " }"), " { ")
	key, data, isMap := strings.Cut(text, " : ")
	key, comment, _ := strings.Cut(key, " comment ")
	if holds = "comment " + comment; isMap {
		holds += " : " + data
	}
	return "set " + h.table() + " " + set + " " + strings.ReplaceAll(key, " . ", "."), holds
}
