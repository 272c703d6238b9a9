package file

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
)

func TestRestartAfterEachChange(t *testing.T) {
	put := func(files ...string) func(h *host) { // name, text, name, text
		return func(h *host) {
			for i := 0; i < len(files); i += 2 {
				check(h.T, os.RemoveAll(h.path(files[i])))
				if files[i+1] != "remove" {
					h.write(files[i], files[i+1])
				}
			}
		}
	}
	tests := []struct {
		name   string
		run    []func(h *host) // what is done while it runs, one after the other
		down   func(h *host)   // and while it is stopped
		steps  []string        // services in use after each step of the start
		states string
		faults string
	}{
		{
			name: "nothing changed", run: []func(*host){put("a.toml", "a 1\n", "b.toml", "b 2\n")},
			down: put(), steps: []string{"a 1, b 2", "synced"},
			states: "a.toml accepted 1; b.toml accepted 1",
		},
		{
			name: "broken while down", run: []func(*host){put("a.toml", "a 3\n", "b.toml", "b 1\n")},
			down: put("a.toml", "bad\n", "b.toml", "b 2\n"), steps: []string{"a 3, b 1", "a 3, b 2", "synced"},
			states: "a.toml stale 1; b.toml accepted 1", faults: "DIR/a.toml: bad",
		},
		{
			name: "broken while running", run: []func(*host){put("a.toml", "a 3\n"), put("a.toml", "bad\n")},
			down: put(), steps: []string{"a 3", "synced"},
			states: "a.toml stale 1", faults: "DIR/a.toml: bad",
		},
		{
			name: "repaired while down", run: []func(*host){put("a.toml", "a 3\n"), put("a.toml", "bad\n")},
			down: put("a.toml", "a 4\n"), steps: []string{"a 3", "a 4", "synced"}, states: "a.toml accepted 1",
		},
		{
			name: "empty", run: []func(*host){put("a.toml", "a 3\n")},
			down: put("a.toml", ""), steps: []string{"a 3", "synced"},
			states: "a.toml stale 1", faults: "DIR/a.toml: the file is empty",
		},
		{
			name: "unreadable", run: []func(*host){put("a.toml", "a 3\n")},
			down: func(h *host) { put("a.toml", "remove")(h); check(h.T, syscall.Mkfifo(h.path("a.toml"), 0o644)) }, steps: []string{"a 3", "synced"},
			states: "a.toml stale 1", faults: "DIR/a.toml: cannot be read: it is not a regular file",
		},
		{
			name: "a link that leads nowhere", run: []func(*host){put("a.toml", "a 3\n")},
			down: func(h *host) { put("a.toml", "remove")(h); check(h.T, os.Symlink("x", h.path("a.toml"))) }, steps: []string{"a 3", "synced"},
			states: "a.toml stale 1", faults: "DIR/a.toml: cannot be read: no such file or directory",
		},
		{
			name: "a directory while down", run: []func(*host){put("a.toml", "a 3\n", "b.toml", "b 1\n")},
			down: func(h *host) { put("a.toml", "remove")(h); check(h.T, os.Mkdir(h.path("a.toml"), 0o755)) }, steps: []string{"a 3, b 1", "synced"},
			states: "a.toml stale 1; b.toml accepted 1", faults: "DIR/a.toml: cannot be read: it is a directory; put a file in its place",
		},
		{
			name: "a link to a directory while down", run: []func(*host){put("a.toml", "a 3\n")},
			down: func(h *host) { put("a.toml", "remove")(h); check(h.T, os.Symlink(".", h.path("a.toml"))) }, steps: []string{"a 3", "synced"},
			states: "a.toml stale 1", faults: "DIR/a.toml: cannot be read: it is a directory; put a file in its place",
		},
		{
			name: "a directory while running", run: []func(*host){put("a.toml", "a 3\n"), func(h *host) { put("a.toml", "remove")(h); check(h.T, os.Mkdir(h.path("a.toml"), 0o755)) }},
			down: put(), steps: []string{"a 3", "synced"},
			states: "a.toml stale 1", faults: "DIR/a.toml: cannot be read: it is a directory; put a file in its place",
		},
		{
			name: "a directory that was none of ours", run: []func(*host){put("a.toml", "a 3\n"), func(h *host) { check(h.T, os.Mkdir(h.path("b.toml"), 0o755)) }},
			down: func(h *host) { check(h.T, os.Symlink("b.toml", h.path("c.toml"))) }, steps: []string{"a 3", "synced"}, states: "a.toml accepted 1",
		},
		{
			name: "a file of no services, and a directory after it", run: []func(*host){put("a.toml", "a 3\n"), func(h *host) { check(h.T, os.Remove(h.path("a.toml"))) }},
			down: func(h *host) { check(h.T, os.Mkdir(h.path("a.toml"), 0o755)) }, steps: []string{"", "synced"},
		},
		{
			name: "removed", run: []func(*host){put("a.toml", "a 3\n", "b.toml", "b 1\n")},
			down: put("a.toml", "remove"), steps: []string{"b 1", "synced"}, states: "b.toml accepted 1",
		},
		{
			name: "removed while running, back and broken", run: []func(*host){put("a.toml", "a 3\n"), put("a.toml", "remove")},
			down: put("a.toml", "bad\n"), steps: []string{"", "synced"}, states: "a.toml refused 0", faults: "DIR/a.toml: bad",
		},
		{
			name: "never accepted", run: []func(*host){put("a.toml", "bad\n")},
			down: put(), steps: []string{"", "synced"}, states: "a.toml refused 0", faults: "DIR/a.toml: bad",
		},
		{
			name: "fewer endpoints", run: []func(*host){put("a.toml", "a 3\n")},
			down: put("a.toml", "a 2\n"), steps: []string{"a 3", "synced", "a 2"}, states: "a.toml accepted 1",
		},
		{
			name: "new", run: []func(*host){put("a.toml", "a 3\n")},
			down: put("b.toml", "b 1\n"), steps: []string{"a 3", "a 3, b 1", "synced"},
			states: "a.toml accepted 1; b.toml accepted 1",
		},
		{
			name: "no services, explicitly", run: []func(*host){put("a.toml", "a 3\n"), put("a.toml", "none\n")},
			down: put("a.toml", "bad\n"), steps: []string{"", "synced"}, states: "a.toml stale 0", faults: "DIR/a.toml: bad",
		},

		{
			name: "who claimed first keeps it", run: []func(*host){put("b.toml", "x 2\n"), put("a.toml", "x 1\n")},
			down: put(), steps: []string{"x 2", "x 2", "synced"}, states: "a.toml accepted 0; b.toml accepted 1",
		},
		{
			name: "who claimed first keeps it, though broken now", run: []func(*host){put("b.toml", "x 2\n"), put("a.toml", "x 1\n")},
			down: put("b.toml", "bad\n"), steps: []string{"x 2", "x 2", "synced"},
			states: "a.toml accepted 0; b.toml stale 1", faults: "DIR/b.toml: bad",
		},
		{
			name: "moved while down", run: []func(*host){put("a.toml", "x 1\na 1\n", "b.toml", "b 1\n")},
			down:  put("a.toml", "a 1\n", "b.toml", "x 1\nb 1\n"),
			steps: []string{"a 1, b 1, x 1", "a 1, b 1, x 1", "synced", "a 1, b 1, x 1"}, states: "a.toml accepted 1; b.toml accepted 2",
		},
		{
			name: "of two that claim again, the one accepted first", run: []func(*host){put("b.toml", "b 1\n"), put("a.toml", "a 1\n")},
			down:  put("a.toml", "a 1\nx 1\n", "b.toml", "b 1\nx 2\n"),
			steps: []string{"a 1, b 1", "a 1, b 1, x 2", "synced"}, states: "a.toml accepted 1; b.toml accepted 2",
		},
		{
			name: "a claim taken from a file whose new version was refused", run: []func(*host){
				put("a.toml", "a 1\n"), put("b.toml", "b 1\n"), put("b.toml", "b 1\na 2\n"),
			},
			down: put("b.toml", "bad\n"), steps: []string{"a 1, b 1", "synced"},
			states: "a.toml accepted 1; b.toml stale 1", faults: "DIR/b.toml: bad",
		},

		{
			name: "copy damaged", run: []func(*host){put("a.toml", "a 3\n")},
			down: func(h *host) { h.damage("a.toml"); put("a.toml", "bad\n")(h) }, steps: []string{"", "synced"},
			states: "a.toml refused 0",
			faults: "DIR/a.toml: bad; STATE/lastgood/a.toml.SUM: warning: the copy of the last good version cannot be used: its checksum is not the recorded one; no older one is kept, so none of its services are used",
		},
		{
			name: "copy missing", run: []func(*host){put("a.toml", "a 3\n")},
			down: func(h *host) { check(h.T, os.Remove(h.state+"/lastgood/"+h.copies()[0])); put("a.toml", "bad\n")(h) }, steps: []string{"a 3", "synced"},
			states: "a.toml stale 1", faults: "DIR/a.toml: bad", // it was in the history, and is written again
		},
		{
			name: "copy damaged, but not needed", run: []func(*host){put("a.toml", "a 3\n")},
			down: func(h *host) { h.damage("a.toml") }, steps: []string{"a 3", "synced"}, states: "a.toml accepted 1",
		},
		{
			name: "copy damaged, and another version", run: []func(*host){put("a.toml", "a 3\n")},
			down: func(h *host) { h.damage("a.toml"); put("a.toml", "a 4\n")(h) }, steps: []string{"a 4", "synced"}, states: "a.toml accepted 1",
		},
		{
			name: "copy not understood any more", run: []func(*host){put("a.toml", "a 3\n")},
			down: func(h *host) {
				put("a.toml", "bad\n")(h)
				h.record("a.toml", "a x\n")
			}, steps: []string{"", "synced"},
			states: "a.toml refused 0",
			faults: "DIR/a.toml: bad; STATE/lastgood/a.toml.SUM: warning: the copy of the last good version cannot be used: a x",
		},
		{
			name: "index damaged", run: []func(*host){put("a.toml", "a 3\n"), put("b.toml", "b 1\n")},
			down: func(h *host) {
				index, err := os.ReadFile(h.state + "/lastgood/index")
				check(h.T, err)
				write(h.T, h.state+"/lastgood/index", strings.Replace(string(index), `"a.toml"`, `"c.toml"`, 1))
				put("a.toml", "bad\n", "b.toml", "bad\n")(h)
			},
			steps: []string{"a 3, b 1", "synced"}, states: "a.toml stale 1; b.toml stale 1", faults: "DIR/a.toml: bad; DIR/b.toml: bad",
		},
		{
			name: "index cut off", run: []func(*host){put("a.toml", "a 3\n"), put("b.toml", "b 1\n")},
			down: func(h *host) {
				info, err := os.Stat(h.state + "/lastgood/index")
				check(h.T, err)
				check(h.T, os.Truncate(h.state+"/lastgood/index", info.Size()-1))
				put("a.toml", "bad\n", "b.toml", "bad\n")(h)
			},
			steps: []string{"a 3, b 1", "synced"}, states: "a.toml stale 1; b.toml stale 1", faults: "DIR/a.toml: bad; DIR/b.toml: bad",
		},
		{
			name: "index lost", run: []func(*host){put("a.toml", "a 3\n")},
			down: func(h *host) { check(h.T, os.Remove(h.state+"/lastgood/index")) }, steps: []string{"a 3", "synced"}, states: "a.toml accepted 1",
		},
		{
			name: "state lost", run: []func(*host){put("a.toml", "a 3\n")},
			down: func(h *host) { check(h.T, os.RemoveAll(h.state)) }, steps: []string{"a 3", "synced"}, states: "a.toml accepted 1",
		},
		{
			name: "names", run: []func(*host){put("a\nb.toml", "a 3\n", "\xff .json", "b 1\n", strings.Repeat("ü", 125)+".toml", "c 1\n", "a.0123456789ab.toml", "d 1\n")},
			down:   put("a\nb.toml", "", "\xff .json", "", strings.Repeat("ü", 125)+".toml", "bad\n", "a.0123456789ab.toml", "bad\n"),
			steps:  []string{"a 3, b 1, c 1, d 1", "synced"},
			states: "a\nb.toml stale 1; a.0123456789ab.toml stale 1; " + strings.Repeat("ü", 125) + ".toml stale 1; \xff .json stale 1",
			faults: `"DIR/a\nb.toml": the file is empty; DIR/a.toml.SUM: bad; DIR/` + strings.Repeat("ü", 125) + ".toml: bad; DIR/\xff .json: the file is empty",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(h *host) {
				h.start()
				for _, change := range tt.run {
					change(h)
					moment()
				}
				h.stop()
				tt.down(h)
				for i := range 2 { // the second start knows what the first did
					h.start()
					moment()
					now, steps := h.sink.look()
					h.stop()
					if got := steps; i == 0 && !slices.Equal(got, tt.steps) {
						t.Errorf("services in use, by step\n got: %q\nwant: %q", got, tt.steps)
					}
					if want := lastServices(tt.steps); now != want {
						t.Errorf("services in use after start %d: %q; want %q", i, now, want)
					}
					if got := h.states(); got != tt.states {
						t.Errorf("files after start %d\n got: %s\nwant: %s", i, got, tt.states)
					}
					got := regexp.MustCompile(`\.[0-9a-f]{12}\.toml`).ReplaceAllString(h.faults(), ".toml.SUM")
					if got != tt.faults {
						t.Errorf("faults after start %d\n got: %s\nwant: %s", i, got, tt.faults)
					}
				}
				h.checkStore()
			})
		})
	}
}

func lastServices(steps []string) string {
	if last := steps[len(steps)-1]; last != "synced" {
		return last
	}
	return steps[len(steps)-2]
}

// refusals returns n versions of b.toml that all claim x.
func refusals(n int) (steps []string) {
	for i := range n {
		steps = append(steps, fmt.Sprintf("b.toml=x %d\n", i+2))
	}
	return steps
}

// What is known of acceptance comes late, or never, as when another file has the claim.
func TestLateAcceptance(t *testing.T) {
	const (
		late = "-" // from here on nothing is told of
		told = "+" // this tells it
	)
	tests := []struct {
		name   string
		steps  []string // name = text
		uses   string
		states string
		kept   string // names and texts
	}{
		{"at once", []string{"a.toml=a 1\n"}, "a 1", "a.toml accepted 1", "a.toml=a 1\n"},
		{"late", []string{late, "a.toml=a 1\n", "a.toml=a 2\n", told}, "a 2", "a.toml accepted 1", "a.toml=a 2\n"},
		{"not yet", []string{"a.toml=a 1\n", late, "a.toml=a 2\n"}, "a 2", "a.toml accepted 1", "a.toml=a 1\n"},
		{"late, of a file that is gone", []string{late, "a.toml=a 1\n", "a.toml=remove", told}, "", "", ""},
		{"late, of a file that broke", []string{late, "a.toml=a 1\n", "a.toml=bad\n", told}, "", "a.toml refused 0", ""},
		{"late, of a change that broke", []string{"a.toml=a 1\n", late, "a.toml=a 2\n", "a.toml=bad\n", told}, "a 1", "a.toml stale 1", "a.toml=a 1\n"},
		{"back while late", []string{late, "a.toml=a 1\n", "a.toml=a 2\n", "a.toml=a 1\n", told}, "a 1", "a.toml accepted 1", "a.toml=a 1\n"},
		{"removed", []string{"a.toml=a 1\n", "a.toml=remove"}, "", "", ""},
		{"refused", []string{"a.toml=x 1\n", "b.toml=x 2\n"}, "x 1", "a.toml accepted 1; b.toml accepted 0", "a.toml=x 1\n"},
		{"change refused", []string{"a.toml=x 1\n", "b.toml=b 1\n", "b.toml=b 1\nx 2\n"}, "b 1, x 1", "a.toml accepted 1; b.toml accepted 1", "a.toml=x 1\nb.toml=b 1\n"},
		{"refused, then free", []string{"a.toml=x 1\n", "b.toml=x 2\n", "a.toml=a 1\n"}, "a 1, x 2", "a.toml accepted 1; b.toml accepted 1", "a.toml=a 1\nb.toml=x 2\n"},
		{"refused, then broken, then free", []string{"a.toml=x 1\n", "b.toml=x 2\n", "b.toml=bad\n", "a.toml=a 1\n"}, "a 1", "a.toml accepted 1; b.toml refused 0", "a.toml=a 1\n"},
		{"change refused, then broken, then free", []string{"a.toml=x 1\n", "b.toml=b 1\n", "b.toml=x 2\n", "b.toml=bad\n", "a.toml=a 1\n"}, "a 1, b 1", "a.toml accepted 1; b.toml stale 1", "a.toml=a 1\nb.toml=b 1\n"},
		{"many refused", slices.Concat([]string{"a.toml=x 1\n"}, refusals(3*maxSent), []string{"a.toml=remove"}), "x 49", "b.toml accepted 1", "b.toml=x 49\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			inBubble(t, func(h *host) {
				h.start()
				moment()
				for _, step := range tt.steps {
					name, text, _ := strings.Cut(step, "=")
					switch {
					case name == late:
						h.sink.beLate()
					case name == told:
						h.sink.tell()
					case text == "remove":
						check(t, os.Remove(h.path(name)))
					default:
						h.write(name, text)
					}
					moment()
					h.src.mu.Lock()
					if f := h.src.files["b.toml"]; f != nil && len(f.sent) > maxSent {
						t.Errorf("%d versions are held; want %d at most", len(f.sent), maxSent)
					}
					h.src.mu.Unlock()
				}
				if got, _ := h.sink.look(); got != tt.uses {
					t.Errorf("services in use: %q; want %q", got, tt.uses)
				}
				if got := h.states(); tt.name != "not yet" && got != tt.states {
					t.Errorf("files\n got: %s\nwant: %s", got, tt.states)
				}
				var kept strings.Builder
				for _, name := range slices.Sorted(slices.Values(h.src.store.Names())) {
					r, _ := h.src.store.Find(name)
					data, err := h.src.store.Read(name, r)
					check(t, err)
					kept.WriteString(name + "=" + string(data))
				}
				if kept.String() != tt.kept {
					t.Errorf("kept\n got: %q\nwant: %q", kept.String(), tt.kept)
				}
				h.stop()
			})
		})
	}
}

// A version is logged as accepted when it is, once: not when its claims are refused.
func TestAcceptanceIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		h.start()
		moment()
		for _, f := range []struct{ name, text string }{
			{"a.toml", "x 1\n"}, {"b.toml", "x 2\n"}, {"b.toml", "b 1\n"}, {"b.toml", "b 1\nx 3\n"}, {"b.toml", "bad\n"}, {"b.toml", "hm\nx 4\n"},
			{"a.toml", "none\n"}, {"a.toml", "a 1\n"}, {"a.toml", "bad\n"}, {"a.toml", "a 1\n"},
		} {
			h.write(f.name, f.text)
			h.src.Reload()
			moment()
		}
		h.stop()
		h.start()
		moment()
		h.stop()
		checkLog(t, &h.log, h.dir, `INFO service files read 0
INFO service file accepted DIR/a.toml 1
INFO service file accepted DIR/b.toml 1
WARN service file is broken: its services stay as last accepted DIR/b.toml 1
INFO service file accepted DIR/a.toml 0
WARN service file accepted with warnings DIR/b.toml 1
INFO service file accepted DIR/a.toml 1
WARN service file is broken: its services stay as last accepted DIR/a.toml 1
INFO service file accepted DIR/a.toml 1
WARN service file accepted with warnings DIR/b.toml 1
INFO service files read 2
`)
	})
}
