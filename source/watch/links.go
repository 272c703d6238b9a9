package watch

import (
	"path/filepath"
	"slices"
	"strings"

	"svcproxy.dev/svcproxy/source/disk"
)

// maxHops is how many links the kernel follows in one path, MAXSYMLINKS.
const maxHops = 40

// A tracer finds out on which paths the meaning of others depends.
type tracer struct {
	disks *disk.Asker
	seen  map[string]disk.PathInfo // paths share most of their directories
}

func newTracer(d *disk.Asker) *tracer { return &tracer{d, map[string]disk.PathInfo{}} }

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
		is, ok := t.seen[next]
		if !ok {
			is = t.disks.Lstat(next) // what does not answer leads nowhere
			t.seen[next] = is
		}
		if is.Err == nil && !is.IsLink() {
			at = next
			continue
		}
		passed = append(passed, next)
		if is.LeadsTo == "" || len(passed) > maxHops {
			return "", passed
		}
		if filepath.IsAbs(is.LeadsTo) {
			at = "/"
		}
		rest = append(strings.Split(is.LeadsTo, "/"), rest...)
	}
	return at, append(passed, at)
}

// silent reports whether one of these paths, which trace passed, does not answer.
func (t *tracer) silent(passed []string) bool {
	return slices.ContainsFunc(passed, func(path string) bool { return t.seen[path].Err == disk.ErrNoAnswer })
}
