package watch

import (
	"path/filepath"
	"strings"

	"svcproxy.dev/svcproxy/source/disk"
)

// maxHops is how many links the kernel follows in one path, MAXSYMLINKS.
const maxHops = 40

// A tracer finds out on which paths the meaning of others depends.
type tracer struct {
	disks *disk.Asker
	seen  map[string]component // paths share most of their directories
}

type component struct {
	target string // of a link
	exists bool
}

func newTracer(d *disk.Asker) *tracer { return &tracer{d, map[string]component{}} }

// Trace follows an absolute path and returns where it leads, empty if nowhere, and
// the paths that say so: those of the links on the way, and the end of it. Where it ends
// early, that is the name that is missing.
func (t *tracer) trace(path string) (end string, passed []string) {
	at, rest := "/", strings.Split(path, "/")
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		next := filepath.Join(at, name) // .. is resolved, and right: at has no links
		found := t.readComponent(next)
		if found.target == "" && found.exists {
			at = next
			continue
		}
		passed = append(passed, next)
		if !found.exists || len(passed) > maxHops {
			return "", passed
		}
		if filepath.IsAbs(found.target) {
			at = "/"
		}
		rest = append(strings.Split(found.target, "/"), rest...)
	}
	return at, append(passed, at)
}

func (t *tracer) readComponent(path string) component {
	if c, ok := t.seen[path]; ok {
		return c
	}
	is := t.disks.Lstat(path) // what does not answer leads nowhere
	c := component{target: is.LeadsTo, exists: is.Err == nil && is.IsLink() == (is.LeadsTo != "")}
	t.seen[path] = c
	return c
}
