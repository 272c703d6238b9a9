package file

import (
	"fmt"
	"hash/crc32"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// wouldUse returns what commands say that a daemon would use that starts now.
func (h *host) wouldUse() string {
	h.Helper()
	rules := read.Rules{Limits: h.limits, Check: h.check}
	units, before := Recall(rules, h.dir, h.state)
	t := newTracked(nil)
	t.apply(source.Changes{Set: slices.Collect(maps.Values(units))})
	rules.Before = before
	files, err := rules.ReadDir(h.dir, keep.Recorded(h.state))
	check(h.T, err)
	var ch source.Changes
	for _, f := range files {
		if !source.AnyError(f.Faults) && !f.OfEndpoints() {
			ch.Set = append(ch.Set, source.Unit{ID: source.UnitID{Source: Name, Name: f.Path}, Services: f.Services})
		}
	}
	t.apply(ch)
	return t.inUse()
}

// A service that does not fit its list keeps what it has, over restarts and for commands too, and the fault names both. The
// other services of the file, and other files, take the list.
func TestServiceKeepsItsList(t *testing.T) {
	onHost(t, func(h *host) {
		both := strings.Replace(serviceFrom("api", fromList), `["10.96.0.97"]`, `["10.96.0.97", "fd00:96::10"]`, 1)
		h.write("web.toml", serviceFrom("web", fromList)+both)
		h.write("other.toml", strings.ReplaceAll(strings.ReplaceAll(both, `"api"`, `"other"`), `0.97", "fd00:96::10"`, `0.98", "fd00:96::11"`))
		h.write("web.endpoints.json", listOfN(2))
		h.start()
		moment()
		const fault = `DIR/web.endpoints.json:1:2: for service "default/web" (DIR/web.toml:2:8): endpoint fd00::1 is IPv6, and the service has no address of that family; nothing would be sent to it`
		h.set("web.endpoints.json", `["fd00::1", "10.1.0.3", "10.1.0.4"]`)
		for _, when := range []string{"misfit", "restart", "restart again"} {
			h.use(when, "api 3, other 3, web 2")
			h.say(when, "other.toml accepted 1; web.endpoints.json stale 0; web.toml accepted 2", fault)
			if got := h.wouldUse(); got != "api 3, other 3, web 2" {
				h.Errorf("%s: commands say %s", when, got)
			}
			h.restart()
		}
		if n := strings.Count(h.log.String(), "a list of endpoints does not fit some services"); n < 1 || n > 4 { // one of each run
			h.Errorf("logged %d times", n)
		}
		h.set("web.endpoints.json", "[")
		h.restart()
		h.use("broken", "api 3, other 3, web 2")
		h.set("web.endpoints.json", listOfN(5))
		h.use("fits", "api 5, other 5, web 5")
		h.change(func() {})
		if len(h.src.decisions.kept)+len(h.src.keeping) > 0 {
			h.Errorf("kept still: %v", h.src.decisions.kept)
		}
	})
}

// What is in use of a file that is refused, for another has what it claims, follows its list.
func TestRefusedFileFollowsItsList(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("other.toml", strings.Replace(serviceFrom("other", "endpoints = []"), "10.96.0.111", "10.96.0.1", 1))
		h.write("web.toml", serviceFrom("web", fromList))
		h.write("web.endpoints.json", listOfN(2))
		h.start()
		moment()
		h.set("web.toml", portNamed("", `, "10.96.0.1"`))
		h.use("refused", "other 0, web 2")
		h.set("web.endpoints.json", listOfN(3))
		h.use("a list", "other 0, web 3")
		h.restart()
		h.use("restart", "other 0, web 3")
		h.sink.beLate()
		h.set("web.toml", serviceFrom("web", fromList)+"# on its way\n")
		h.set("web.toml", portNamed("", `, "10.96.0.1"`)+"# and refused\n")
		h.set("web.endpoints.json", listOfN(4))
		h.use("not told", "other 0, web 3")
		h.sink.tell()
		moment()
		h.use("accepted late", "other 0, web 4")
	})
}

// Lists that take more than the limits allow wait, and a start does not let them in.
func TestLimitedListOverRestart(t *testing.T) {
	for _, grows := range []string{"web", "api"} {
		t.Run(grows, func(t *testing.T) {
			onHost(t, func(h *host) {
				other := strings.TrimSpace(strings.Replace("web api", grows, "", 1))
				h.limits.FrontendEndpoints = 5
				h.write("web.toml", serviceFrom("web", fromList)+serviceFrom("api", `endpoints_from = "api.endpoints.json"`))
				h.write("web.endpoints.json", listOfN(2))
				h.write("api.endpoints.json", listOfN(2))
				h.start()
				moment()
				h.set(grows+".endpoints.json", listOfN(4))
				for _, when := range []string{"too many", "restart", "again"} {
					h.use(when, "api 2, web 2")
					h.restart()
					if _, steps := h.sink.look(); steps[0] != "api 2, web 2" {
						h.Errorf("%s: steps %q", when, steps)
					}
				}
				h.set(other+".endpoints.json", listOfN(1))
				h.use("room", strings.Replace("api 1, web 1", grows+" 1", grows+" 4", 1))
			})
		})
	}
}

// An apply that is not confirmed goes back to what services kept, also where they kept it before, and over a restart.
func TestApplyGoesBackToKeptList(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint(restart), func(t *testing.T) {
			onHost(t, func(h *host) {
				h.write("web.toml", portNamed("http", ""))
				h.write("web.endpoints.json", listFor("http"))
				h.start()
				moment()
				h.set("web.endpoints.json", strings.Replace(listFor("web"), "10.1.0.2", "10.1.0.3", 1))
				h.use("kept", "web 2")
				h.apply(time.Minute)
				h.set("web.toml", portNamed("web", ""))
				h.set("web.endpoints.json", `[{"address": "10.1.0.9", "ports": {"web": 80}}]`)
				h.use("applied", "web 1")
				pass(31 * time.Second) // what is written is on the disk, and nothing is kept by now
				if restart {
					h.stop()
					pass(time.Minute)
					h.start()
				}
				pass(time.Minute)
				h.use("went back", "web 2")
				h.restart()
				h.use("restart", "web 2")
				if got := h.src.files["web.toml"].inUse.Services[0].Endpoints[1].Addr.String(); got != "10.1.0.2" {
					h.Errorf("endpoint %s", got)
				}
			})
		})
	}
}

// The guard judges what would be in use: a list that fits no service takes nothing away, and nothing has moved to a file that
// only a list fits which is held.
func TestGuardJudgesWhatFits(t *testing.T) {
	onHost(t, func(h *host) {
		h.guard = Guard{Removals: 30}
		list := strings.ReplaceAll(listOfN(20), `",`, `:8080",`) // for services of one port
		h.write("web.toml", portNamed("http", ""))
		h.write("web.endpoints.json", list)
		var many strings.Builder
		for i := range 12 {
			many.WriteString(serviceFrom(string(rune('a'+i)), "endpoints = []"))
		}
		h.write("many.toml", many.String())
		h.start()
		moment()
		all, _ := h.sink.look()
		h.set("web.endpoints.json", `[{"address": "10.1.0.1", "ports": {"web": 8080}}]`)
		h.use("fits nothing", all)
		if got := h.states(); got != "many.toml accepted 12; web.endpoints.json stale 0; web.toml accepted 1" {
			t.Errorf("files %s", got)
		}
		h.set("web.endpoints.json", list)
		two := strings.Replace(serviceFrom("x", fromList), "{ port = 80 }", `{ name = "http", port = 80 }, { name = "b", port = 82 }`, 1)
		h.set("web.endpoints.json", listOfN(1), "many.toml", "services = []\n", "moved.toml", many.String()+two)
		h.use("moved to a file that waits", all)
		if got := h.states(); got != "many.toml held 12; moved.toml refused 0; web.endpoints.json held 0; web.toml accepted 1" {
			t.Errorf("files %s", got)
		}
		h.confirm()
		h.use("confirmed", strings.Replace(all, "web 20", "web 1, x 1", 1))
	})
}

// A new file is not judged with a list that waits for apply, as it does.
func TestNewFileAndHeldList(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("a.toml", serviceFrom("a", "endpoints = []"))
		h.start()
		moment()
		h.src.SetGuard(Guard{Manual: true})
		h.set("web.endpoints.json", namedList("web", 1), "web.toml", portNamed("http", ""))
		h.say("held", "a.toml accepted 1; web.endpoints.json held 0; web.toml held 0", h.faults())
		h.set("web.endpoints.json", namedList("http", 1, 2))
		h.confirm()
		h.use("confirmed", "a 0, web 2")
	})
}

// Of a file that moves to another list, the version in use goes on with its own, and what holds that list is the guard.
func TestGuardWhileFileMovesToAnotherList(t *testing.T) {
	onHost(t, func(h *host) {
		h.guard = Guard{Removals: 30}
		twelve := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
		h.write("web.toml", portNamed("http", ""))
		h.write("web.endpoints.json", namedList("http", twelve...))
		h.write("m.endpoints.json", namedList("http", twelve...))
		h.start()
		moment()
		h.sink.beLate()
		h.set("web.endpoints.json", namedList("http", append(twelve, 13)...))
		h.set("web.toml", strings.Replace(portNamed("http", ""), "web.end", "m.end", 1))
		h.set("web.endpoints.json", namedList("http", 1, 2, 3))
		h.confirm()
		h.sink.tellFirst()
		h.set("m.endpoints.json", namedList("http", append(twelve, 14)...))
		h.sink.tell()
		moment()
		if got := len(strings.Fields(h.addrs())); got != 13 {
			t.Errorf("%d endpoints", got)
		}
	})
}

// A state directory of an earlier version says which lists a file was accepted with.
func TestEarlierDecisions(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("web.toml", portNamed("http", ""))
		h.write("web.endpoints.json", listFor("http"))
		h.start()
		moment()
		h.stop()
		of, list := read.IDOf([]byte(portNamed("http", "")), nil), read.IDOf([]byte(listFor("http")), nil)
		path := h.state + "/lastgood/decisions"
		text := fmt.Sprintf(`{"lists":[{"file":"web.toml","of":"%x","lists":{"web.endpoints.json":"%x"}}]}`, of, list)
		write(t, path, fmt.Sprintf("%s%08x\n%s\n", decisionsHeader, crc32.ChecksumIEEE([]byte(text)), text))
		check(t, os.Link(h.lastCopy("web.endpoints.json"), h.state+"/copy"))
		h.record("web.endpoints.json", listFor("web"))
		check(t, os.Rename(h.state+"/copy", h.copyOf("web.endpoints.json", listFor("http"))))
		h.write("web.toml", "[[")
		h.write("web.endpoints.json", "[")
		h.start()
		moment()
		h.use("taken over", "web 2")
		h.restart()
		h.use("restart", "web 2")
	})
}

// A stored is what a state directory has: the text of its index and decisions, and all copies.
type stored struct {
	index, decisions string
	copies           map[string]string
}

func (h *host) stored() stored {
	h.Helper()
	text := func(name string) string {
		data, err := os.ReadFile(h.state + "/lastgood/" + name)
		if err != nil && !os.IsNotExist(err) {
			h.Fatal(err)
		}
		return string(data)
	}
	is := stored{text("index"), text("decisions"), map[string]string{}}
	for _, name := range h.copies() {
		is.copies[name] = text(name)
	}
	return is
}

// between returns what there is between two states, while they are written: decisions first, then line for line the index.
func (is stored) between(next stored) (list []stored) {
	copies := maps.Clone(is.copies)
	maps.Copy(copies, next.copies)
	lines := strings.SplitAfter(strings.TrimPrefix(next.index, is.index), "\n")
	for n := range lines {
		list = append(list, stored{is.index + strings.Join(lines[:n], ""), next.decisions, copies})
	}
	return list
}

// Killed between any two writes, a process leaves a state directory of which the next has endpoints for each service, though
// no file can be read any more.
func TestKilledWhileListsChange(t *testing.T) {
	for name, steps := range map[string][][]string{
		"a list that does not fit":   {{"web.endpoints.json", listFor("web")}},
		"and one that does":          {{"web.endpoints.json", listFor("web")}, {"web.endpoints.json", listFor("http") + "\n"}},
		"the file follows":           {{"web.endpoints.json", listFor("web")}, {"web.toml", portNamed("web", "")}},
		"both at once":               {{"web.endpoints.json", listFor("web"), "web.toml", portNamed("web", "")}},
		"both at once, and refused":  {{"web.endpoints.json", listFor("web"), "web.toml", portNamed("web", `, "10.96.0.1"`)}},
		"both, and back":             {{"web.endpoints.json", listFor("web"), "web.toml", portNamed("web", "")}, {"web.endpoints.json", listFor("http"), "web.toml", portNamed("http", "")}},
		"lists that do not fit":      {{"web.endpoints.json", listFor("web")}, {"web.endpoints.json", listFor("web") + "\n"}, {"web.endpoints.json", listFor("http")}},
		"what waits comes to fit it": {{"web.toml", portNamed("web", "")}, {"web.endpoints.json", listFor("web")}},
	} {
		t.Run(name, func(t *testing.T) {
			onHost(t, func(h *host) {
				h.write("other.toml", strings.Replace(serviceFrom("other", "endpoints = []"), "10.96.0.111", "10.96.0.1", 1))
				h.write("web.toml", portNamed("http", ""))
				h.write("web.endpoints.json", listFor("http"))
				h.start()
				moment()
				for i, step := range steps {
					for i := 0; i < len(step); i += 2 {
						h.write(step[i], step[i+1])
					}
					h.killedWhile(fmt.Sprintf("step %d", i+1), "other 0, web 2")
				}
			})
		})
	}
}

// killedWhile has what was written count, and starts from what the state directory has between any two writes.
func (h *host) killedWhile(what, want string) {
	h.Helper()
	was := h.stored()
	h.src.Reload()
	for ms := range 400 {
		pass(time.Millisecond)
		is := h.stored()
		if is.index == was.index && is.decisions == was.decisions {
			continue
		}
		for n, between := range was.between(is) {
			h.startsFrom(fmt.Sprintf("%s, %d ms, write %d", what, ms, n+1), between, want)
		}
		was = is
	}
	h.startsFrom(what+", at its end", was, want)
}

// startsFrom starts from such a state directory, where no file can be read, and looks for endpoints.
func (h *host) startsFrom(when string, s stored, want string) {
	h.Helper()
	is := newHost(h.T)
	is.real = true
	check(h.T, os.Mkdir(is.state+"/lastgood", 0o700))
	for name, text := range s.copies {
		write(h.T, filepath.Join(is.state, "lastgood", name), text)
	}
	write(h.T, is.state+"/lastgood/index", s.index)
	if s.decisions != "" {
		write(h.T, is.state+"/lastgood/decisions", s.decisions)
	}
	for _, name := range []string{"other.toml", "web.toml", "web.endpoints.json", "api.endpoints.json"} {
		is.write(name, "[")
	}
	is.start()
	moment()
	if now, steps := is.sink.look(); now != want || slices.ContainsFunc(steps, func(s string) bool { return s != "synced" && s != now }) {
		h.Errorf("%s: %q is in use, after %q\n%s", when, now, steps, &is.log)
	}
	is.stop()
}

// What services kept is named until the disk has what they have now.
func TestKeptUntilOnDisk(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("a.toml", serviceFrom("a", "endpoints = []"))
		h.write("web.toml", portNamed("http", ""))
		h.write("web.endpoints.json", listFor("http"))
		h.start()
		moment()
		h.set("web.endpoints.json", listFor("web"))
		release := h.stall()
		h.set("web.endpoints.json", listFor("http")+"\n")
		h.use("fits", "a 0, web 2")
		h.change(func() {})
		if len(h.src.decisions.kept) == 0 {
			t.Error("dropped before the list is on the disk")
		}
		release()
		moment()
		h.change(func() {})
		if len(h.src.decisions.kept) > 0 {
			t.Errorf("kept still: %v", h.src.decisions.kept)
		}
	})
}

// Where decisions cannot be written, no record of a list is that would need them.
func TestListsWhereDecisionsCannotBeWritten(t *testing.T) {
	onHost(t, func(h *host) {
		h.write("web.toml", portNamed("http", ""))
		h.write("web.endpoints.json", listFor("http"))
		h.start()
		moment()
		check(t, os.MkdirAll(h.state+"/lastgood/decisions/x", 0o700))
		h.set("web.endpoints.json", listFor("web"))
		h.use("kept", "web 2")
		if len(h.warnings()) != 1 {
			t.Errorf("warnings: %q", h.warnings())
		}
		h.stop()
		check(t, os.RemoveAll(h.state+"/lastgood/decisions"))
		h.write("web.endpoints.json", "[")
		h.start()
		moment()
		h.use("restart", "web 2")
	})
}
