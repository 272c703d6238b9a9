package conditions

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"svcproxy.dev/svcproxy/internal/times"
	"svcproxy.dev/svcproxy/proxier/healthcheck"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/disk"
)

const (
	// StateName is the name of the file in the state directory.
	StateName = "conditions.json"

	// A file with the suffix markSuffix, which is empty, exists while the state holds anything. A start that finds this
	// file and no state knows that the state was lost.
	markSuffix = ".kept"

	// format changes when older files cannot be read any more.
	format = 1

	// mostKept is of how many endpoints a restart knows something.
	mostKept = 100_000

	// maxStateSize is the size of the largest file that is read and written, in bytes: there
	// is room for mostKept endpoints with errors of twice the usual length.
	maxStateSize = 64 << 20

	// maxError is how long the error of a check may be, in bytes.
	maxError = 200
)

// A state is what the file says, as JSON: endpoints by service ("default/web") and address
// ("192.168.10.12:80").
type state struct {
	Format   int                        `json:"format"`
	Drains   *Drains                    `json:"drains,omitempty"`
	Services map[string]map[string]kept `json:"services"`
}

func (st *state) empty() bool { return len(st.Services) == 0 && st.Drains.empty() }

// A kept endpoint is what a restart knows of it.
type kept struct {
	State  string    `json:"state,omitempty"` // of its check, see stateWords
	Since  time.Time `json:"since,omitzero"`
	Error  string    `json:"error,omitempty"`
	Passed bool      `json:"passed,omitempty"` // it has, ever

	Out       bool      `json:"out,omitempty"` // when it gets new connections again, a slow start begins
	SlowStart time.Time `json:"slow_start,omitzero"`
	Lost      bool      `json:"lost,omitempty"` // it failed together with all that could stand in for it
	Left      time.Time `json:"left,omitzero"`  // since when it is not asked
	Gone      bool      `json:"gone,omitempty"` // it is in no service
}

// stateWords are the states of checks, as the file has them.
var stateWords = []string{source.CheckUnknown: "", source.CheckPassed: "up", source.CheckFailed: "down"}

func keptOf(e *endpoint, gone bool) kept {
	r := e.result
	return kept{
		State: stateWords[r.State], Since: r.Since, Error: r.Error, Passed: r.Passed,
		Out: e.out(), SlowStart: e.began, Lost: e.lost, Left: e.left, Gone: gone,
	}
}

// endpoint returns what is known again; not ok: that cannot be.
func (e kept) endpoint(now time.Time) (out *endpoint, ok bool) {
	at := slices.Index(stateWords, e.State)
	state := source.CheckResult(max(at, 0))
	past := func(t time.Time) time.Time { return times.Earlier(t, now) } // the clock may have been set back
	left := past(e.Left)
	if left.IsZero() {
		left = now
	}
	out = &endpoint{usable: !e.Out, lost: e.Lost, began: past(e.SlowStart), left: left}
	out.result = healthcheck.Result{
		State: state, Since: past(e.Since), Error: escaped(e.Error, maxError), Passed: e.Passed || state == source.CheckPassed,
	}
	return out, at >= 0
}

// each calls visit for all endpoints, up to mostKept, and returns the names of those that
// cannot be, or that visit says cannot be.
func (st *state) each(visit func(endpointKey, kept) bool) (unusable []string) {
	n := 0
	for name, endpoints := range st.Services {
		key, named := keyOf(name)
		for text, e := range endpoints {
			at, err := netip.ParseAddrPort(text)
			if n++; n > mostKept || !named || err != nil || !visit(endpointKey{key, at}, e) {
				unusable = append(unusable, name+" "+text)
			}
		}
	}
	return unusable
}

// keyOf reads the text of a Key.
func keyOf(text string) (source.Key, bool) {
	namespace, name, _ := strings.Cut(text, "/")
	return source.Key{Namespace: namespace, Name: name}, source.IsLabel(namespace) && source.IsLabel(name)
}

// badSuffix is of the name under which a file is kept that could not be read whole. There is one
// such file, the last.
const badSuffix = ".bad"

// A stateFile is the file of a state, and what is known of writing it.
type stateFile struct {
	path   string
	failed atomic.Pointer[string] // why it cannot be written; nil: it can

	missing bool // it was not there at the start, and held something before

	mu     sync.Mutex // held while it is written
	marked bool       // the file with markSuffix is there
	lost   int        // endpoints that there was no room for
	told   bool       // and that was told
}

func newStateFile(dir string) *stateFile { return &stateFile{path: filepath.Join(dir, StateName)} }

// write replaces the file.
func (f *stateFile) write(st *state, synced bool) error {
	data, err := json.Marshal(st)
	if len(data) > maxStateSize {
		err = fmt.Errorf("it would be larger than %d bytes", maxStateSize)
	}
	if err == nil {
		err = disk.Replace(f.path, f.path+".new", synced, disk.Bytes(data))
	}
	if err == nil {
		err = f.mark(!st.empty())
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", f.path, err)
	}
	return nil
}

// mark notes beside the file whether it holds anything.
func (f *stateFile) mark(holds bool) error {
	if f.marked == holds {
		return nil
	}
	var err error
	if holds {
		err = os.WriteFile(f.path+markSuffix, nil, 0o600)
	} else if err = os.Remove(f.path + markSuffix); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		f.marked = holds
	}
	return err
}

// logOutcome logs what has become of a write, where that is news.
func (f *stateFile) logOutcome(log *slog.Logger, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.failed.Load()
	switch {
	case err != nil:
		why := err.Error()
		f.failed.Store(&why)
		if was == nil {
			log.Warn("cannot save the state of endpoints; retrying at the next change", "err", err)
		}
		return
	case was != nil:
		f.failed.Store(nil)
		log.Info("the state of endpoints is saved again", "file", f.path)
	}
	if f.lost > 0 && !f.told {
		log.Warn("too many endpoints to save the state of all; some of it will not survive a restart", "kept", mostKept, "others", f.lost)
	}
	f.told = f.lost > 0
}

func (f *stateFile) problem() string {
	var list []string
	if why := f.failed.Load(); why != nil {
		list = append(list, "a restart will not know the state of endpoints: "+*why)
	}
	if f.missing {
		list = append(list, source.Quote(f.path)+" was missing when svcproxy started, so that drains have ended and results of checks were not known: drain again what is to be")
	}
	if name := f.aside(); name != "" {
		list = append(list, source.Quote(name)+" could not be read whole when svcproxy started, so that drains may have ended: drain again what is to be, and remove that file")
	}
	return strings.Join(list, "; ")
}

func (f *stateFile) bytes() ([]byte, error) {
	file, err := os.OpenFile(f.path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // of a pipe nobody waits for a writer
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("it is no regular file")
	}
	var b bytes.Buffer
	if _, err := b.ReadFrom(io.LimitReader(file, maxStateSize+1)); err != nil {
		return nil, err
	}
	if b.Len() > maxStateSize {
		return nil, fmt.Errorf("it is larger than %d bytes", maxStateSize)
	}
	return b.Bytes(), nil
}

// aside returns the name of the file that was put aside; empty: there is none.
func (f *stateFile) aside() string {
	if _, err := os.Lstat(f.path + badSuffix); err != nil {
		return ""
	}
	return f.path + badSuffix
}
