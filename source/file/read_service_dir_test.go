package file

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
)

// What a directory that has gone held stays, while svcproxy runs and when it starts.
func TestGoneDirectoryKeepsServices(t *testing.T) {
	away := func(h *host) { check(h.T, os.Rename(h.dir, h.dir+".away")) }
	emptied := func(h *host) { away(h); check(h.T, os.Mkdir(h.dir, 0o755)) }
	back := func(h *host) { check(h.T, os.RemoveAll(h.dir)); check(h.T, os.Rename(h.dir+".away", h.dir)) }
	nothing := func(*host) {}
	remade := func(h *host) { // with the same inode, where the file system gives it out again
		was, err := disk.DirIDOf(unix.AT_FDCWD, h.dir)
		check(h.T, err)
		for try, now := 0, was; now.Born == was.Born && was.Born != 0 || now.Ino != was.Ino && try < 100; try++ { // its clock goes in ticks
			check(h.T, os.RemoveAll(h.dir))
			check(h.T, os.Mkdir(h.dir, 0o755))
			now, err = disk.DirIDOf(unix.AT_FDCWD, h.dir)
			check(h.T, err)
		}
	}
	const all = "a 1, b 2"
	tests := []struct {
		name    string
		change  func(h *host)
		uses    string
		trouble string
		then    func(h *host)
		end     string
	}{
		{"moved away, and back", away, all, "no such file or directory", back, all},
		{"moved away, and back with changes", away, all, "no such file or directory", func(h *host) {
			write(h.T, h.dir+".away/a.toml", "a 3\n")
			check(h.T, os.Remove(h.dir+".away/b.toml"))
			back(h)
		}, "a 3"},
		{"another and empty", emptied, all, errEmptyReplacement.Error(), back, all},
		{"another that gets files", emptied, all, errEmptyReplacement.Error(), func(h *host) { h.write("c.toml", "c 1\n") }, "c 1"},
		{"another with files", func(h *host) { emptied(h); h.write("c.toml", "c 1\n") }, "c 1", "", nothing, "c 1"},
		{"not a directory", func(h *host) { away(h); write(h.T, h.dir, "") }, all, "not a directory", back, all},
		{"removed", func(h *host) { check(h.T, os.RemoveAll(h.dir)) }, all, "no such file or directory", nothing, all},
		{"removed and made again", remade, all, errEmptyReplacement.Error(), nothing, all},
		{"made again with settings only", func(h *host) { remade(h); h.write(read.SettingsName, "") }, all, errEmptyReplacement.Error(), nothing, all},
		{"the same, and emptied", func(h *host) {
			check(h.T, os.Remove(h.path("a.toml")))
			check(h.T, os.Remove(h.path("b.toml")))
		}, "", "", nothing, ""},
	}
	for _, tt := range tests {
		for _, when := range []string{"running", "stopped"} {
			t.Run(tt.name+", "+when, func(t *testing.T) {
				inBubble(t, func(h *host) {
					h.dir += "/conf.d"
					check(t, os.Mkdir(h.dir, 0o755))
					h.write("a.toml", "a 1\n")
					h.write("b.toml", "b 2\n")
					h.start()
					moment()
					if when == "stopped" {
						h.stop()
						tt.change(h)
						h.start()
					} else {
						tt.change(h)
					}
					for range 2 { // a restart changes nothing
						pass(2 * time.Minute)
						now, _ := h.sink.look()
						if now != tt.uses || !h.src.Status().Synced {
							t.Errorf("in use: %q; want %q; log\n%s", now, tt.uses, h.log.String())
						}
						if got := h.warnings(); tt.trouble == "" && len(got) > 0 || tt.trouble != "" && (len(got) != 1 || !strings.Contains(got[0], tt.trouble)) {
							t.Errorf("warnings: %q; want %q", got, tt.trouble)
						}
						h.stop()
						h.start()
					}
					pass(time.Second)
					tt.then(h)
					pass(2 * time.Minute)
					h.stop()
					if now, _ := h.sink.look(); now != tt.end {
						t.Errorf("in the end %q; want %q", now, tt.end)
					}
				})
			})
		}
	}
}

// Where nothing is known, a directory that does not exist may be a mistyped one.
func TestMissingDirectoryMayBeMistyped(t *testing.T) {
	inBubble(t, func(h *host) {
		h.dir += "/conf.d"
		h.start()
		pass(time.Minute)
		h.stop()
		if h.src.Status().Synced || len(h.warnings()) != 1 || count(&h.log, "level=ERROR") != 1 {
			t.Errorf("synced %v, warnings %q, log\n%s", h.src.Status().Synced, h.warnings(), h.log.String())
		}
		h.start()
		check(t, os.Mkdir(h.dir, 0o755))
		pass(2 * time.Second)
		h.stop()
		if !h.src.Status().Synced || len(h.warnings()) != 0 {
			t.Errorf("once it is made: synced %v, warnings %q", h.src.Status().Synced, h.warnings())
		}
	})
}

// What the first versions kept of a directory, without its time of birth, still tells it.
func TestDirectoryIDOfFirstVersions(t *testing.T) {
	dir, state := t.TempDir(), t.TempDir()
	check(t, os.Mkdir(state+"/lastgood", 0o755))
	id, err := disk.DirIDOf(unix.AT_FDCWD, dir)
	check(t, err)
	write(t, keep.DirectoryPath(state), fmt.Sprintf("%d %d\n", id.Dev, id.Ino))
	check(t, CheckListing(dir, state))
	write(t, keep.DirectoryPath(state), fmt.Sprintf("%d %d\n", id.Dev, id.Ino+1))
	if err := CheckListing(dir, state); err != errEmptyReplacement {
		t.Errorf("CheckListing of another directory: %v", err)
	}
}
