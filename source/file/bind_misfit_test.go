package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"svcproxy.dev/svcproxy/source/keep"
)

// sixWeb is web with an address of IPv6 only, and one more service.
var sixWeb = strings.Replace(serviceFrom("web", fromList), `["10.96.0.119"]`, `["fd00:96::10"]`, 1) + serviceFrom("api", `endpoints = []`)

// A file that is rolled back stays so when what the file itself says comes to fit.
func TestRollbackOfMisfitStays(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("web.toml", serviceFrom("web", fromList))
		h.write("web.endpoints.json", listOfN(2))
		h.start()
		moment()
		h.set("web.toml", serviceFrom("web", fromList)+"# 2\n")
		h.set("web.toml", sixWeb)
		h.use("does not fit", "web 2")
		list, err := keep.Histories(h.state, "web.toml")
		check(t, err)
		_, err = h.src.Rollback(context.Background(), "web.toml", list[len(list)-1].Number)
		check(t, err)
		h.set("web.endpoints.json", "[]")
		h.use("fits", "web 0")
		h.restart()
		h.use("restart", "web 0")
		h.set("web.toml", sixWeb+"# 2\n")
		h.use("changed", "api 0, web 0")
	})
}

// longList is a list of so many addresses that it is read beside the others.
func longList(format string) string {
	var b strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&b, `"`+format+`",`+"\n", i/250, i%250+1)
	}
	return "[" + strings.TrimSuffix(b.String(), ",\n") + "]"
}

// A list that is being read again while it comes to fit is used.
func TestLargeReadOfMisfit(t *testing.T) {
	for name, then := range map[string]func(h *host){
		"fits": func(h *host) {
			h.set("web.toml", strings.Replace(serviceFrom("web", fromList), `["10`, `["fd00:96::10", "10`, 1))
		},
		"in other words": func(h *host) { h.set("web.toml", "# one line more\n"+serviceFrom("web", fromList)) },
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *host) {
				h.write("web.toml", serviceFrom("web", fromList))
				h.write("web.endpoints.json", longList("10.1.%d.%d"))
				h.start()
				moment()
				h.set("web.endpoints.json", longList("fd00:%d::%d"))
				for range cap(h.src.slots) {
					h.src.slots <- struct{}{}
				}
				h.src.Reload()
				moment()
				then(h)
				before := h.states() + "\n" + h.faults()
				for range cap(h.src.slots) {
					<-h.src.slots
				}
				moment()
				if now := h.states() + "\n" + h.faults(); now != before {
					t.Errorf("before %.300s\nread %.300s", before, now)
				}
			})
		})
	}
}

// A version is not changed when what is wrong with it changes: a large file is read beside.
func TestMisfitIsNotChanged(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("web.toml", serviceFrom("web", fromList))
		h.write("web.endpoints.json", listOfN(2))
		h.start()
		moment()
		h.set("web.toml", sixWeb)
		seen := h.src.files["web.toml"].seen
		was := seen.Faults[0]
		h.set("web.endpoints.json", "\n"+listOfN(2))
		if seen.Faults[0] != was {
			t.Errorf("%s became %s", was, seen.Faults[0])
		}
		if !strings.Contains(h.faults(), "web.endpoints.json:2:2") {
			t.Errorf("said: %s", h.faults())
		}
	})
}

// A list that is gone and of which no good version is known any more is told once: what is said of it does not
// become longer with each look.
func TestLostListIsReportedOnce(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("web.toml", serviceFrom("web", fromList))
		h.write("web.endpoints.json", listOfN(3))
		h.start()
		moment()
		h.stop()
		check(t, os.Remove(h.lastCopy("web.endpoints.json")))
		check(t, errors.Join(os.RemoveAll(h.state+"/history"), os.Remove(h.path("web.endpoints.json"))))
		h.start()
		moment()
		for range 5 {
			h.src.Reload()
			moment()
		}
		h.say("after some looks", "web.toml stale 1", `DIR/web.toml:5:18: "web.endpoints.json" cannot be used, and no good version of it is known: DIR/web.endpoints.json: cannot be read: no such file or directory`)
		h.set("web.endpoints.json", listOfN(2))
		h.use("back", "web 2")
		h.say("back", "web.endpoints.json accepted 0; web.toml accepted 1", "")
	})
}
