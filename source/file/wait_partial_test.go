package file

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"svcproxy.dev/svcproxy/source/read"
)

// What may be half written, by what it takes away and how it was written.
func TestMayBePartial(t *testing.T) {
	const web = `[[services]]
name = "web"
vips = ["10.96.0.10", "fd00:96::10"]
load_balancer_ips = ["203.0.113.1"]
endpoints = ["192.168.10.11", "192.168.10.12"]
internal_traffic_policy = "local"
external_traffic_policy = "local"
health_check_node_port = 30900
source_ranges = ["198.0.0.0/8"]
load_balancer_source_ranges = ["198.51.100.0/24"]
ports = [{ name = "a", port = 80 }, { name = "b", port = 90, target_port = 8080 }]
`
	const two = web + `
[[services]]
name = "two"
vips = ["10.96.0.20"]
ports = [{ port = 80 }]
`
	without := func(key string) string {
		var b strings.Builder
		for line := range strings.Lines(web) {
			if !strings.HasPrefix(line, key) {
				b.WriteString(line)
			}
		}
		return b.String()
	}
	const last = `services = [{ name = "web", vips = ["10.96.0.10"], ports = [{ port = 80 }] }] # 8080`
	tests := []struct {
		name, old, new string
		placed, want   bool
	}{
		{"the same", web, web, false, false},
		{"a service more", web, two, false, false},
		{"a service less", two, web, false, true},
		{"a service less, renamed", two, web, true, false},
		{"another service", web, strings.Replace(web, `"web"`, `"other"`, 1), false, true},
		{"explicitly none", web, "services = []\n", false, true},
		{"an endpoint less", web, strings.Replace(web, `, "192.168.10.12"`, "", 1), false, true},
		{"another endpoint", web, strings.Replace(web, "10.12", "10.13", 1), false, false},
		{"a port less", web, strings.Replace(web, `, { name = "b", port = 90, target_port = 8080 }`, "", 1), false, true},
		{"an address less", web, strings.Replace(web, `, "fd00:96::10"`, "", 1), false, true},
		{"no source ranges", web, without("load_balancer_source_ranges"), false, true},
		{"no source ranges of all addresses", web, without("source_ranges"), false, true},
		{"no source ranges, renamed", web, without("load_balancer_source_ranges"), true, false},
		{"other source ranges", web, strings.Replace(web, "100.0/24", "0.0/16", 1), false, false},
		{"no node port addresses", web + "node_port_addresses = [\"all\"]\n", web + "scheduler = \"rr\"\n", false, true},
		{"no internal policy", web, without("internal"), false, true},
		{"no external policy", web, without("external"), false, true},
		{"no health check", web, without("health"), false, true},
		{"no check of endpoints", web + "health_check = { type = \"tcp\" }\n", web + "scheduler = \"rr\"\n", false, true},
		{"another check of endpoints", web + "health_check = { type = \"tcp\" }\n", web + "health_check = { type = \"http\" }\n", false, false},
		{"restricted", without("load_balancer_source_ranges"), web, false, false},
		{"a number cut off", web, strings.Replace(web, "8080", "80", 1), false, false}, // and the rest is there
		{"a beginning", last, last[:len(last)-2], false, true},
		{"a beginning, renamed", last, last[:len(last)-2], true, false},
		{"broken", web, web[:20], false, true},
		{"broken, renamed", web, web[:20], true, false},
	}
	for _, tt := range tests {
		read := func(text string) *read.Version {
			return read.NewVersion(context.Background(), "a.toml", []byte(text), nil, read.Rules{}, read.Rules.ParseNew, nil)
		}
		old, v := read(tt.old), read(tt.new)
		if old.Broken {
			t.Fatalf("%s: %v", tt.name, old.Faults)
		}
		beginning := len(tt.new) < len(tt.old) && bytes.HasPrefix([]byte(tt.old), []byte(tt.new))
		if got := mayBePartial(old, v, beginning, tt.placed); got != tt.want {
			t.Errorf("%s: %v; want %v; faults %v", tt.name, got, tt.want, v.Faults)
		}
	}
}

// What may be half written does not count while a process has the file open to write
// it, for 2 s at most, however long that writer is held up in the middle.
func TestOpenFileWaitsForItsWriter(t *testing.T) {
	const ms = time.Millisecond
	tests := []struct {
		name  string
		moves []move // "close": who has it open closes it
		want  []string
	}{
		{"left open", []move{{0, "a 8\n"}}, []string{after(maxWait+mergeTime, "a.toml: a 8")}},
		{"closed", []move{{0, "a 8\n"}, {900 * ms, "close"}}, []string{after(mergeTime+quietTime+35*openPoll, "a.toml: a 8")}},
		{"closed soon", []move{{0, "a 8\n"}, {50 * ms, "close"}}, []string{after(mergeTime+quietTime, "a.toml: a 8")}},
		{"held up", []move{{0, ""}, {600 * ms, "a 9"}, {1200 * ms, "a 9\nb 1\n"}}, []string{after(1200*ms+mergeTime, "a.toml: a 9, b 1")}},
		{"held up, and slow", []move{{0, "a 8\n"}, {600 * ms, "a 7\n"}, {1200 * ms, "a 6\n"}}, []string{after(maxWait+mergeTime, "a.toml: a 6")}},
		{"more", []move{{0, "a 10\n"}}, []string{after(mergeTime, "a.toml: a 10")}},
		{"broken", []move{{0, "bad\n"}}, nil},
		{"written all the time", rewrites("a 8\n", "a 7\n"), []string{after(maxWait+mergeTime, "a.toml: a 8")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir+"/a.toml", "a 9\n")
			file, err := os.OpenFile(dir+"/a.toml", os.O_WRONLY, 0)
			check(t, err)
			defer file.Close()
			synctest.Test(t, func(t *testing.T) {
				f := blind(t, dir)
				for i, m := range tt.moves {
					time.Sleep(m.at - time.Since(f.sink.start))
					if m.text == "close" {
						check(t, file.Close())
					} else {
						f.move(i, m.text)
					}
				}
				time.Sleep(2400*ms - time.Since(f.sink.start))
				f.stop()
				if got := f.sink.take(); !slices.Equal(got, tt.want) {
					t.Errorf("calls\n got: %q\nwant: %q", got, tt.want)
				}
			})
		})
	}
}

// A file that waits holds up no other.
func TestWaitingFileHoldsUpNoOther(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.toml", "a 2\n")
	write(t, dir+"/b.toml", "b 2\n")
	synctest.Test(t, func(t *testing.T) {
		f := blind(t, dir)
		f.write("a.toml", "a 1\n")
		f.src.Reload()
		time.Sleep(10 * time.Millisecond)
		f.write("b.toml", "b 3\n")
		f.src.Reload()
		time.Sleep(500 * time.Millisecond)
		f.stop()
		want := []string{after(10*time.Millisecond+mergeTime, "b.toml: b 3"), after(mergeTime+quietTime, "a.toml: a 1")}
		if got := f.sink.take(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("calls\n got: %q\nwant: %q", got, want)
		}
	})
}

// All files get other names, one by one, as a git checkout does it: first all go,
// then all come. No service is ever absent. What does not come back is removed.
func TestCheckoutRemovesNoService(t *testing.T) {
	const files = 299
	inBubble(t, func(h *host) {
		name := func(kind string, i int) string { return fmt.Sprintf("%s%d.toml", kind, i) }
		for i := range files {
			h.write(name("old", i), fmt.Sprintf("s%d 1\n", i))
		}
		h.start()
		moment()
		_, steps := h.sink.look()
		before := len(steps)
		for i := range files {
			check(t, os.Remove(h.path(name("old", i))))
			h.src.wake()
			time.Sleep(3 * time.Millisecond)
		}
		for i := range files {
			h.write(name("new", i), fmt.Sprintf("s%d 1\n", i))
			h.src.wake()
			time.Sleep(3 * time.Millisecond)
		}
		time.Sleep(maxWait)
		_, steps = h.sink.look()
		for i, s := range steps[before:] {
			if n := strings.Count(s, "s"); n != files {
				t.Fatalf("in step %d %d services are in use; want %d", i, n, files)
			}
		}
		check(t, os.Remove(filepath.Join(h.dir, name("new", 0))))
		for range 30 { // while others come and go
			h.write("other.toml", "other 1\n")
			h.src.wake()
			time.Sleep(50 * time.Millisecond)
			check(t, os.Remove(h.path("other.toml")))
			h.src.wake()
			time.Sleep(50 * time.Millisecond)
		}
		if now, _ := h.sink.look(); strings.Contains(now, "s0 1") {
			t.Error("a file that went is still used after 3 s")
		}
		h.stop()
	})
}

// A file gets another name and is written there. Its service is not absent while who
// writes it is held up.
func TestRenamedAndHeldUp(t *testing.T) {
	inBubble(t, func(h *host) {
		h.write("old.toml", "s 1\n")
		h.start()
		moment()
		check(t, os.Rename(h.path("old.toml"), h.path("new.toml")))
		file, err := os.OpenFile(h.path("new.toml"), os.O_WRONLY|os.O_TRUNC, 0)
		check(t, err)
		h.src.wake()
		pass(time.Second)
		_, err = file.WriteString("s 2\n")
		check(t, err)
		check(t, file.Close())
		h.src.wake()
		moment()
		h.stop()
		now, steps := h.sink.look()
		for _, s := range steps {
			if s == "" {
				t.Errorf("no service is in use in one of the steps %q", steps)
			}
		}
		if now != "s 2" {
			t.Errorf("at last %q is in use; want %q", now, "s 2")
		}
	})
}

// Where no event tells that a file was replaced, its inode does: what was renamed into
// its place is whole. What was written into the same inode, or is a file that was made
// there, may be half written, whatever times it has been given.
func TestReplacedFileWithoutEventIsWhole(t *testing.T) {
	past := time.Unix(1e9, 0)
	for name, tt := range map[string]struct {
		change func(f *fixture)
		wait   time.Duration
	}{
		"renamed": {func(f *fixture) {
			f.write(".new", "a 2\n")
			check(f.T, os.Chtimes(f.path(".new"), past, past))
			check(f.T, os.Rename(f.path(".new"), f.path("a.toml")))
		}, 0},
		"written in place": {func(f *fixture) {
			f.write("a.toml", "a 2\n")
			check(f.T, os.Chtimes(f.path("a.toml"), past, past))
		}, quietTime},
		"made again": {func(f *fixture) {
			check(f.T, os.Rename(f.path("a.toml"), f.path(".old"))) // keeps its inode
			f.write("a.toml", "a 2\n")
		}, quietTime},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir+"/a.toml", "a 3\n")
			synctest.Test(t, func(t *testing.T) {
				f := blind(t, dir)
				tt.change(f)
				f.src.Reload()
				time.Sleep(800 * time.Millisecond)
				f.stop()
				want := []string{after(mergeTime+tt.wait, "a.toml: a 2")}
				if got := f.sink.take(); !slices.Equal(got, want) {
					t.Errorf("calls\n got: %q\nwant: %q", got, want)
				}
			})
		})
	}
}
