package file

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
)

// variants are texts of the files that a walk changes; "gone": there is no file.
var variants = map[string][]string{
	"a.toml":           {fromX("four"), fromX("four"), fromX("six"), fromX("both"), strings.ReplaceAll(fromX("four"), "x.end", "y.end"), serviceFrom("a", `endpoints = ["10.1.0.9"]`), "[[services", "gone"},
	"b.toml":           {strings.ReplaceAll(serviceFrom("b", fromList), "web.end", "x.end"), serviceFrom("b", `endpoints = []`), "", "gone"},
	"x.endpoints.json": {listOfN(3), listOfN(1), listOfN(5), `["fd00::1"]`, `["10.1.0.1", "fd00::1"]`, "[]", `["10.1.0.1"`, "", "gone"},
	"y.endpoints.json": {listOfN(2), listOfN(4), `[{"address": "10.1.0.1", "port": 8080}]`, "null", "gone"},
	"c.toml": {strings.ReplaceAll(serviceFrom("c", fromList), "web.end", "x.end"), strings.Replace(strings.ReplaceAll(serviceFrom("c", fromList), "web.end", "x.end"), "10.96.0.99", "10.96.0.98", 1), // which b has
		strings.ReplaceAll(serviceFrom("c", fromList)+serviceFrom("d", fromList), "web.end", "x.end"), "gone"},
}

// fromX is a service with addresses of one family, or of both, that refers to a list.
func fromX(families string) string {
	text := strings.ReplaceAll(serviceFrom("a", fromList), "web.end", "x.end")
	switch families {
	case "six":
		return strings.ReplaceAll(text, `"10.96.0.97"`, `"fd00:96::10"`)
	case "both":
		return strings.ReplaceAll(text, `"10.96.0.97"`, `"10.96.0.97", "fd00:96::10"`)
	}
	return text
}

// turn gives a file one of its texts.
func (h *host) turn(name, text string) {
	if text != "gone" {
		h.write(name, text)
	} else if err := os.Remove(h.path(name)); !errors.Is(err, fs.ErrNotExist) {
		check(h.T, err)
	}
}

// Whatever becomes of services and lists, a restart changes nothing; and when all are good
// again, all that they say is used.
func TestListsOverRestarts(t *testing.T) {
	for seed := range uint64(6) {
		r := rand.New(rand.NewPCG(seed, 1))
		onHost(t, func(h *host) {
			var walk []string
			h.start()
			moment()
			for range 30 {
				name := sortedNames(variants)[r.IntN(len(variants))]
				text := variants[name][r.IntN(len(variants[name]))]
				walk = append(walk, name+": "+text)
				h.change(func() { h.turn(name, text) })
				if moment(); r.IntN(3) > 0 {
					continue
				}
				before, said := h.sink.inUse(), h.faults()
				if would := h.wouldUse(); would != before {
					h.Fatalf("seed %d: %q is in use, and commands say %q\nafter\n%s", seed, before, would, strings.Join(walk, "\n"))
				}
				h.restart()
				moment()
				now, steps := h.sink.look()
				if now != before || said != h.faults() || before != "" && steps[0] != before {
					h.Fatalf("seed %d: before %q, restarted %q, then %q\nsaid %s\n now %s\nafter\n%s", seed, before, steps, now, said, h.faults(), strings.Join(walk, "\n"))
				}
			}
			h.set("a.toml", fromX("both"), "b.toml", variants["b.toml"][0], "x.endpoints.json", listOfN(2), "y.endpoints.json", "[]", "c.toml", variants["c.toml"][0])
			moment()
			h.use("all good", "a 2, b 2, c 2")
		})
	}
}
