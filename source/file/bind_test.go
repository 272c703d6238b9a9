package file

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/source/keep"
)

// serviceFrom is a service, with this line of its own.
func serviceFrom(name, line string) string {
	return fmt.Sprintf("[[services]]\nname = %q\nvips = [\"10.96.0.%d\"]\nports = [{ port = 80 }]\n%s\n", name, name[0], line)
}

const fromList = `endpoints_from = "web.endpoints.json"`

// listOfN is a list of n endpoints.
func listOfN(n int) string {
	var b []string
	for i := range n {
		b = append(b, fmt.Sprintf(`"10.1.0.%d"`, i+1))
	}
	return "[" + strings.Join(b, ",\n ") + "]\n"
}

// onHost runs a test of a host whose files are read as they are.
func onHost(t *testing.T, test func(h *host)) {
	inBubble(t, func(h *host) {
		h.real = true
		test(h)
		h.stop()
		h.checkStore()
	})
}

// use compares what is in use: services with how many endpoints they have.
func (h *host) use(when, want string) {
	h.Helper()
	if got, _ := h.sink.look(); got != want {
		h.Errorf("%s: %q is in use, want %q\nfiles: %s\nfaults: %s", when, got, want, h.states(), h.faults())
	}
}

func (h *host) say(when, states, faults string) {
	h.Helper()
	if got := h.states(); got != states {
		h.Errorf("%s: files\n got: %s\nwant: %s", when, got, states)
	}
	if got := h.faults(); got != faults {
		h.Errorf("%s: faults\n got: %s\nwant: %s", when, got, faults)
	}
}

// set writes files, name and text in turn, and lets them count.
func (h *host) set(nameText ...string) {
	h.Helper()
	h.change(func() {
		for i := 0; i < len(nameText); i += 2 {
			h.write(nameText[i], nameText[i+1])
		}
	})
}

// What happens to a list goes for the services that refer to it, whatever file they are in, and
// for nothing else.
func TestListChangesReachItsServicesOnly(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("web.toml", serviceFrom("web", fromList)+serviceFrom("api", `endpoints = ["10.1.0.9"]`))
		h.write("other.toml", serviceFrom("other", fromList))
		h.write("web.endpoints.json", listOfN(2))
		h.start()
		moment()
		h.use("start", "api 1, other 2, web 2")
		h.set("web.endpoints.json", listOfN(4))
		h.use("more", "api 1, other 4, web 4")
		h.set("web.endpoints.json", `{"endpoints": [{"address": "10.1.0.1", "port": 8080}]}`)
		h.use("an object", "api 1, other 1, web 1")
		h.set("web.endpoints.json", "[]")
		h.use("none", "api 1, other 0, web 0")
		h.set("web.endpoints.json", listOfN(3))
		h.restart()
		h.use("restart", "api 1, other 3, web 3")
		h.say("restart", "other.toml accepted 1; web.endpoints.json accepted 0; web.toml accepted 2", "")
		h.set("other.toml", serviceFrom("other", `endpoints_from = "other.endpoints.toml"`), "other.endpoints.toml", "[[endpoints]]\naddress = \"10.1.0.1\"\n")
		h.use("another list", "api 1, other 1, web 3")
	})
}

// A list that is broken, empty, unreadable or gone removes nothing, and hinders no change of the files
// that refer to it, over restarts too.
func TestBrokenListFreezesItself(t *testing.T) {
	for name, breakIt := range map[string]func(h *host){
		"broken": func(h *host) { h.write("web.endpoints.json", `["10.1.0.1", "10.1`) },
		"bad":    func(h *host) { h.write("web.endpoints.json", `["10.1.0.300"]`) },
		"empty":  func(h *host) { h.write("web.endpoints.json", "") },
		"gone":   func(h *host) { check(h.T, os.Remove(h.path("web.endpoints.json"))) },
		"a dead end": func(h *host) {
			check(h.T, os.Remove(h.path("web.endpoints.json")))
			check(h.T, os.Symlink("x", h.path("web.endpoints.json")))
		},
		"a directory": func(h *host) {
			check(h.T, os.Remove(h.path("web.endpoints.json")))
			check(h.T, os.Mkdir(h.path("web.endpoints.json"), 0o755))
		},
		"a link to a directory": func(h *host) {
			check(h.T, os.Symlink(h.dir, h.path(".new")))
			check(h.T, os.Rename(h.path(".new"), h.path("web.endpoints.json")))
		},
		"too many": func(h *host) { h.write("web.endpoints.json", listOfN(9)) },
		"misfit":   func(h *host) { h.write("web.endpoints.json", `["fd00::1"]`) },
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *host) {
				h.limits.Endpoints = 8
				h.write("web.toml", serviceFrom("web", fromList))
				h.write("web.endpoints.json", listOfN(3))
				h.start()
				moment()
				h.change(func() { breakIt(h) })
				pass(time.Second)
				h.use(name, "web 3")
				if got := h.states(); got != "web.endpoints.json stale 0; web.toml accepted 1" {
					h.Errorf("files: %s", got)
				}
				if !strings.HasPrefix(h.faults(), "DIR/web.endpoints.json") {
					h.Errorf("faults: %s", h.faults())
				}
				h.set("web.toml", serviceFrom("web", fromList)+serviceFrom("api", fromList))
				h.use("meanwhile", "api 3, web 3")
				h.restart()
				h.use("restart", "api 3, web 3")
				if _, steps := h.sink.look(); steps[0] != "api 3, web 3" {
					h.Errorf("steps of the restart: %q", steps)
				}
				h.change(func() {
					_ = os.Remove(h.path("web.endpoints.json"))
					h.write("web.endpoints.json", listOfN(1))
				})
				h.use("repaired", "api 1, web 1")
				h.say("repaired", "web.endpoints.json accepted 0; web.toml accepted 2", "")
			})
		})
	}
}

// A file that refers to a list which is not there yet waits for it, and all others go on.
func TestListNotThereYet(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("web.toml", serviceFrom("web", fromList))
		h.write("api.toml", serviceFrom("api", `endpoints = ["10.1.0.9"]`))
		h.start()
		moment()
		h.use("start", "api 1")
		h.say("start", "api.toml accepted 1; web.toml refused 0",
			`DIR/web.toml:5:18: "web.endpoints.json" is no file of this directory; the file is used once the list is there: [] is one without endpoints`)
		h.set("web.endpoints.json", `["10.1.0.1",]`)
		h.say("a broken list", "api.toml accepted 1; web.endpoints.json refused 0; web.toml refused 0",
			`DIR/web.endpoints.json:1:12: a comma behind the last element; JSON has commas only between elements; `+
				`DIR/web.toml:5:18: "web.endpoints.json" cannot be used, and no good version of it is known: DIR/web.endpoints.json:1:12: a comma behind the last element; JSON has commas only between elements`)
		h.set("web.endpoints.json", listOfN(2))
		h.use("a list", "api 1, web 2")
		h.say("a list", "api.toml accepted 1; web.endpoints.json accepted 0; web.toml accepted 1", "")
	})
}

// A list and a service that go together only as they are now are taken together, whichever is written first.
func TestMatchingListAndServiceAreTakenTogether(t *testing.T) {
	six := func(line string) string {
		return strings.Replace(serviceFrom("web", line), `["10.96.0.119"]`, `["fd00:96::10"]`, 1)
	}
	for _, first := range []string{"web.toml", "web.endpoints.json"} {
		t.Run(first, func(t *testing.T) {
			onHost(t, func(h *host) {
				h.write("web.toml", serviceFrom("web", fromList))
				h.write("web.endpoints.json", listOfN(2))
				h.write("api.toml", serviceFrom("api", `endpoints_from = "api.endpoints.json"`))
				h.write("api.endpoints.json", listOfN(1))
				h.start()
				moment()
				texts := map[string]string{"web.toml": six(fromList), "web.endpoints.json": `["fd00::1"]`}
				h.set(first, texts[first])
				h.use("one of the two", "api 1, web 2")
				if first == "web.toml" {
					h.say(first, "api.endpoints.json accepted 0; api.toml accepted 1; web.endpoints.json accepted 0; web.toml stale 1",
						`DIR/web.endpoints.json:1:2: for service "default/web" (DIR/web.toml:2:8): endpoint 10.1.0.1 is IPv4, and the service has no address of that family; nothing would be sent to it; `+
							`DIR/web.endpoints.json:2:2: for service "default/web" (DIR/web.toml:2:8): endpoint 10.1.0.2 is IPv4, and the service has no address of that family; nothing would be sent to it`)
				} else {
					h.say(first, "api.endpoints.json accepted 0; api.toml accepted 1; web.endpoints.json stale 0; web.toml accepted 1",
						`DIR/web.endpoints.json:1:2: for service "default/web" (DIR/web.toml:2:8): endpoint fd00::1 is IPv6, and the service has no address of that family; nothing would be sent to it`)
				}
				h.set("api.endpoints.json", listOfN(5))
				h.use("meanwhile", "api 5, web 2")
				h.restart()
				h.use("restart", "api 5, web 2")
				for name, text := range texts {
					h.set(name, text)
				}
				h.use("both", "api 5, web 1")
				h.say("both", "api.endpoints.json accepted 0; api.toml accepted 1; web.endpoints.json accepted 0; web.toml accepted 1", "")
			})
		})
	}
}

// A service that fits neither the list of before nor the new one waits, and the new list does not.
func TestMisfitOfTwo(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("web.toml", serviceFrom("web", fromList))
		h.write("web.endpoints.json", listOfN(2))
		h.start()
		moment()
		h.set("web.toml", strings.Replace(serviceFrom("web", fromList), `["10.96.0.119"]`, `["fd00:96::10"]`, 1), "web.endpoints.json", listOfN(4))
		h.use("both", "web 4")
		if got := h.states(); got != "web.endpoints.json accepted 0; web.toml stale 1" {
			t.Errorf("files: %s", got)
		}
		h.set("web.endpoints.json", listOfN(5))
		h.use("a newer list", "web 5")
	})
}

// A file that does not refer to its list any more may be cut off.
func TestFileWithoutListWaits(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("web.toml", serviceFrom("web", fromList))
		h.write("web.endpoints.json", listOfN(2))
		h.start()
		moment()
		h.write("web.toml", serviceFrom("web", "# "+fromList))
		h.src.Reload()
		pass(150 * time.Millisecond)
		h.use("at first", "web 2")
		moment()
		h.use("quiet", "web 0")
	})
}

// A version of a list with fewer endpoints, or one that may be cut off, waits until the file is quiet; every other is used at once.
func TestSmallerListWaits(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		name, text string
		renamed    bool
		after      time.Duration
		want       string
	}{
		{"more", listOfN(5), false, 20 * ms, "web 5"},
		{"other", strings.ReplaceAll(listOfN(4), "10.1.0", "10.2.0"), false, 20 * ms, "web 4"},
		{"fewer", listOfN(1), false, 150 * ms, "web 4"},
		{"fewer, quiet", listOfN(1), false, 300 * ms, "web 1"},
		{"fewer, renamed", listOfN(1), true, 20 * ms, "web 1"},
		{"none", "[]", false, 150 * ms, "web 4"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onHost(t, func(h *host) {
				h.write("web.toml", serviceFrom("web", fromList))
				h.write("web.endpoints.json", listOfN(4))
				h.start()
				moment()
				if tt.renamed {
					h.write("web.endpoints.json.tmp", tt.text)
					check(h.T, os.Chtimes(h.path("web.endpoints.json.tmp"), time.Unix(1e9, 0), time.Unix(1e9, 0)))
					check(h.T, os.Rename(h.path("web.endpoints.json.tmp"), h.path("web.endpoints.json")))
				} else {
					h.write("web.endpoints.json", tt.text)
				}
				h.src.Reload()
				pass(tt.after)
				h.use(tt.name, tt.want)
			})
		})
	}
}

// A list without a service is a warning, and gone when it is removed; one that a service refers to is not.
func TestUnusedListIsAWarning(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("web.endpoints.json", listOfN(2))
		h.start()
		moment()
		h.say("alone", "web.endpoints.json accepted 0",
			`DIR/web.endpoints.json: warning: no service refers to this file of endpoints; write endpoints_from = "web.endpoints.json" in the service that it is for`)
		h.set("web.toml", serviceFrom("web", fromList))
		h.say("referred to", "web.endpoints.json accepted 0; web.toml accepted 1", "")
		h.change(func() { check(h.T, os.Remove(h.path("web.endpoints.json"))) })
		h.say("gone", "web.endpoints.json stale 0; web.toml accepted 1", "DIR/web.endpoints.json: cannot be read: no such file or directory")
		h.restart()
		h.use("restart", "web 2")
		h.change(func() { check(h.T, os.Remove(h.path("web.toml"))) })
		h.change(func() {})
		h.say("both gone", "", "")
		if names := h.src.store.Names(); len(names) > 0 {
			h.Errorf("recorded still: %q", names)
		}
	})
}

// A list that goes with the last reference to it is gone, and takes nothing with it.
func TestListGoesWithItsReference(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("web.toml", serviceFrom("web", fromList))
		h.write("web.endpoints.json", listOfN(2))
		h.start()
		moment()
		h.change(func() {
			check(t, os.Remove(h.path("web.endpoints.json")))
			h.write("web.toml", serviceFrom("web", `endpoints = ["10.1.0.7", "10.1.0.8", "10.1.0.9"]`))
		})
		h.use("both", "web 3")
		h.change(func() {})
		h.say("both", "web.toml accepted 1", "")
		h.restart()
		h.use("restart", "web 3")
		if names := h.src.store.Names(); len(names) != 1 {
			t.Errorf("recorded: %q", names)
		}
	})
}

// To the history, the guard, a rollback and an apply a list is one of the files.
func TestListIsOneOfTheFiles(t *testing.T) {
	onHost(t, func(h *host) {
		h.guard = Guard{Removals: 30}
		h.write("web.toml", serviceFrom("web", fromList)+serviceFrom("api", fromList))
		h.write("web.endpoints.json", listOfN(20))
		h.start()
		moment()
		h.set("web.endpoints.json", listOfN(15))
		h.use("some go", "api 15, web 15")
		h.set("web.endpoints.json", listOfN(5))
		h.use("too many go", "api 15, web 15")
		h.say("too many go", "web.endpoints.json held 0; web.toml accepted 2",
			"DIR/web.endpoints.json: this change is held: it would remove 15 of 20 endpoints of default/web, and 30 % may go; so of 2 services; svcproxy confirm lets it through")
		h.restart()
		h.use("restart", "api 15, web 15")
		h.confirm()
		h.use("confirmed", "api 5, web 5")

		list, err := keep.Histories(h.state, "web.endpoints.json")
		check(h.T, err)
		if len(list) != 3 || list[0].Removed != 10 || list[0].Names[0] != "-10.1.0.10" || !list[0].OfEndpoints() || !list[0].InUse {
			h.Fatalf("history: %+v", list)
		}
		_, err = h.src.Rollback(context.Background(), "web.endpoints.json", list[2].Number)
		check(h.T, err)
		moment()
		h.use("rolled back", "api 20, web 20")
		h.restart()
		h.use("rolled back, restart", "api 20, web 20")
		h.set("web.endpoints.json", listOfN(19))
		h.use("changed", "api 19, web 19")

		_, err = h.src.Apply(context.Background(), time.Minute)
		check(h.T, err)
		h.set("web.endpoints.json", listOfN(25), "web.toml", serviceFrom("web", fromList))
		h.use("applied", "web 25")
		pass(time.Minute)
		h.use("went back", "api 19, web 19")
	})
}

// A version of a service that fits no list that it could have is not gone back to. A list is, and says what it does not fit.
func TestRollbackOfMisfit(t *testing.T) {
	onHost(t, func(h *host) {
		six := strings.Replace(serviceFrom("web", fromList), `["10.96.0.119"]`, `["fd00:96::10"]`, 1)
		h.write("web.toml", serviceFrom("web", fromList))
		h.write("web.endpoints.json", listOfN(2))
		h.start()
		moment()
		h.set("web.toml", six, "web.endpoints.json", `["fd00::1"]`)
		h.use("another family", "web 1")
		rollback := func(name string) error {
			list, err := keep.Histories(h.state, name)
			check(t, err)
			_, err = h.src.Rollback(context.Background(), name, list[len(list)-1].Number)
			moment()
			return err
		}
		if err := rollback("web.toml"); err == nil || !strings.Contains(err.Error(), "cannot be used with its lists: ") {
			t.Errorf("rollback of the service: %v", err)
		}
		h.use("as before", "web 1")
		check(t, rollback("web.endpoints.json"))
		h.use("the list alone", "web 1")
		check(t, rollback("web.toml"))
		h.use("both", "web 2")
		h.say("both", "web.endpoints.json rolled back 0; web.toml rolled back 1", "DIR/web.endpoints.json: warning: version 1, accepted at 2000-01-01 00:00:00, is used in place of the present file; it is used until the file changes; "+
			"DIR/web.toml: warning: version 2, accepted at 2000-01-01 00:00:00, is used in place of the present file; it is used until the file changes")
	})
}
