package file

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/source/keep"
)

// Where changes wait for apply, a file and its list are applied at once, whichever was written first.
func TestListHeldBeforeItsFile(t *testing.T) {
	for _, first := range []string{"web.toml", "web.endpoints.json"} {
		t.Run(first, func(t *testing.T) {
			onHost(t, func(h *host) {
				h.write("api.toml", serviceFrom("api", `endpoints = []`))
				h.start()
				moment()
				h.src.SetGuard(Guard{Manual: true})
				texts := map[string]string{"web.toml": serviceFrom("web", fromList), "web.endpoints.json": listOfN(2)}
				h.set(first, texts[first])
				delete(texts, first)
				for name, text := range texts {
					h.set(name, text)
				}
				h.say("held", "api.toml accepted 1; web.endpoints.json held 0; web.toml held 0", h.faults())
				h.use("held", "api 0")
				a := h.apply(time.Minute)
				moment()
				h.use("applied", "api 0, web 2")
				if !slices.Equal(a.Files, []string{"web.endpoints.json", "web.toml"}) || len(a.Faults) > 0 {
					t.Errorf("applied: %+v", a)
				}
				h.say("applied", "api.toml accepted 1; web.endpoints.json accepted 0; web.toml accepted 1", "")
				pass(2 * time.Minute)
				h.use("back", "api 0")
			})
		})
	}
}

// What goes with a list that is let through, and would remove too much itself, is held.
func TestReleaseOfListJudgesTheRest(t *testing.T) {
	onHost(t, func(h *host) {
		var many strings.Builder
		for i := range 12 {
			many.WriteString(serviceFrom(string(rune('a'+i)), "endpoints = []"))
		}
		h.write("many.toml", many.String())
		h.write("web.toml", serviceFrom("web", fromList))
		h.write("web.endpoints.json", strings.ReplaceAll(listOfN(20), `",`, `:8080",`))
		h.start()
		moment()
		all, _ := h.sink.look()
		h.src.SetGuard(Guard{Removals: 30})
		h.set("web.endpoints.json", listOfN(1))
		h.set("many.toml", strings.Replace(serviceFrom("x", fromList), "{ port = 80 }", `{ name = "a", port = 80 }, { name = "b", port = 82 }`, 1))
		h.use("held", all)
		if got, want := h.states(), "many.toml stale 12; web.endpoints.json held 0; web.toml accepted 1"; got != want {
			t.Errorf("files %s, want %s", got, want)
		}
		h.confirm()
		h.use("confirmed", strings.Replace(all, "web 20", "web 1", 1))
		if got, want := h.states(), "many.toml held 12; web.endpoints.json accepted 0; web.toml accepted 1"; got != want {
			t.Errorf("files %s, want %s", got, want)
		}
		h.confirm()
		h.use("confirmed again", "web 1, x 1")
	})
}

// A held change that cannot be used any more is not said to be let through.
func TestReleaseOfMisfit(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("web.toml", serviceFrom("web", fromList))
		h.write("web.endpoints.json", listOfN(20))
		h.start()
		moment()
		h.src.SetGuard(Guard{Removals: 30})
		h.set("web.endpoints.json", `[{"address": "10.1.0.1", "port": 81}]`)
		h.set("web.toml", strings.Replace(serviceFrom("web", fromList), "{ port = 80 }", `{ name = "a", port = 80 }, { name = "b", port = 82 }`, 1))
		c, err := h.src.Confirm(context.Background())
		check(t, err)
		moment()
		if len(c.Files) != 1 || len(c.Faults) != 1 || !strings.Contains(c.Faults[0].Msg, "the endpoint has a port") {
			t.Errorf("confirmed: %+v", c)
		}
		h.use("confirmed", "web 20")
	})
}

// What waits for a list is used when the list is rolled back to a version that it fits.
func TestRollbackOfListFits(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("web.toml", serviceFrom("web", fromList))
		h.write("web.endpoints.json", "[]")
		h.start()
		moment()
		h.set("web.endpoints.json", listOfN(2))
		h.set("web.toml", sixWeb)
		h.use("does not fit", "web 2")
		list, err := keep.Histories(h.state, "web.endpoints.json")
		check(t, err)
		_, err = h.src.Rollback(context.Background(), "web.endpoints.json", list[len(list)-1].Number)
		check(t, err)
		moment()
		h.use("rolled back", "api 0, web 0")
	})
}

// A change of a list that waits for apply is told in endpoints.
func TestHeldListIsReportedInEndpoints(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("web.toml", serviceFrom("web", fromList))
		h.write("web.endpoints.json", listOfN(3))
		h.start()
		moment()
		h.src.SetGuard(Guard{Manual: true})
		h.set("web.endpoints.json", listOfN(1))
		if want := "which this would make: 0 endpoints of the list new, 2 gone, 0 changed"; !strings.Contains(h.faults(), want) {
			t.Errorf("said %s", h.faults())
		}
	})
}
