// Package settings has the settings in use follow svcproxy.toml.
//
// A Watcher reads the file again and again. A text counts when it is found twice, so that none is
// used that is half written, and one with faults changes nothing. What only a restart can change
// stays as it was at the start, and Pending names it. The last text that was in use is kept in the
// state directory: a start with a broken file, or without its directory, begins with that.
//
// The main types are the Watcher, the Config that it is made of, and Error, which has the faults of
// a file that nothing can begin with.
package settings

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/journal"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

// Poll is how often svcproxy.toml is read. A new text counts when it is
// found twice, so that none is taken that is half written.
const Poll = 400 * time.Millisecond

// GoneAfter is how many looks in a row must find no svcproxy.toml, 2 s, for it to be
// gone: as long as a service file may wait for others.
const GoneAfter = 5

// An Error says that svcproxy.toml cannot be used.
type Error []source.Fault

// Error has one fault a line.
func (e Error) Error() string {
	lines := make([]string, len(e))
	for i, f := range e {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

// A Config is what a Watcher is made of. One that only reads settings needs nothing but the directories and Load.
type Config struct {
	ConfigDir, StateDir string

	// Load reads svcproxy.toml, and lays flags over it.
	Load func(path string) (configs.Settings, []source.Fault, error)

	Asked      <-chan os.Signal      // to read everything again
	Everything func(context.Context) // reads everything again

	Changed func(was, now configs.Settings) // takes over settings
}

// A Watcher has settings follow svcproxy.toml.
type Watcher struct {
	Config
	Fixed configs.Settings // as they were at start

	log   *slog.Logger
	level *slog.LevelVar // of the log

	text  []byte // of svcproxy.toml, as last looked at
	stale bool   // at start, the last good settings were used

	mu      sync.Mutex
	inUse   configs.Settings
	faults  []source.Fault // of the present svcproxy.toml
	restart []string       // settings that changed but are only read at start
	unkept  error          // why inUse is not kept for the next start; nil: it is
}

// Current returns the settings in use.
func (w *Watcher) Current() configs.Settings {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.inUse
}

// Pending returns what is wrong with the present svcproxy.toml, and which settings of it wait for a restart.
func (w *Watcher) Pending() (faults []source.Fault, restart []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.faults, w.restart
}

// Follow takes over what changes in svcproxy.toml, and reads everything
// again when told to, until ctx ends. A disk may keep it for longer: it then changes
// nothing any more.
func (w *Watcher) Follow(ctx context.Context) {
	tick := time.NewTicker(Poll)
	defer tick.Stop()
	seen, trouble := w.text, ""
	missed := 0 // looks that found no file
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.Asked:
			w.Everything(ctx)
			seen = w.text
		case <-tick.C:
			now, err := w.contents()
			if ctx.Err() != nil {
				return
			}
			if errors.Is(err, errNoText) && w.text == nil {
				continue // it says as much as none
			}
			if err != nil {
				if why := err.Error(); why != trouble { // not for a moment only
					trouble = why
				} else if !bytes.Equal(w.text, unknown) {
					w.refuse([]source.Fault{read.UnreadableFault(w.path(), err)})
				}
				continue
			}
			if missed++; now != nil {
				missed = 0
			} else if missed < GoneAfter && w.text != nil {
				continue // it may be about to come back
			}
			if settled := bytes.Equal(now, seen); settled && !bytes.Equal(now, w.text) {
				w.text = now
				w.reload(ctx)
			}
			seen, trouble = now, ""
		}
	}
}

// path returns where svcproxy.toml is.
func (w *Watcher) path() string { return filepath.Join(w.ConfigDir, read.SettingsName) }

var errNoText = errors.New("it says nothing")

// Read takes over svcproxy.toml at once. It reports false where ctx has ended.
func (w *Watcher) Read(ctx context.Context) bool {
	switch text, err := w.contents(); {
	case ctx.Err() != nil:
		return false
	case err != nil:
		w.refuse([]source.Fault{read.UnreadableFault(w.path(), err)})
	default:
		w.text = text
		w.reload(ctx)
	}
	return true
}

// reload takes over svcproxy.toml as it is now. One with faults changes nothing.
func (w *Watcher) reload(ctx context.Context) {
	s, faults, err := w.Load(w.path())
	if ctx.Err() != nil {
		return
	}
	if now, gone := w.contents(); gone != nil || !bytes.Equal(now, w.text) {
		w.text = unknown // it has changed again, perhaps before it was read
		return
	}
	if err != nil {
		faults = []source.Fault{read.UnreadableFault(w.path(), err)}
	}
	if source.AnyError(faults) {
		text := w.text
		w.refuse(faults)
		w.text = text
		return
	}
	for _, f := range faults {
		w.log.Warn(f.String())
	}
	w.use(s, faults)
	w.save(ctx)
}

// refuse keeps the settings in use, for the file has faults.
func (w *Watcher) refuse(faults []source.Fault) {
	for _, f := range faults {
		w.log.Warn(f.String())
	}
	w.log.Error("svcproxy.toml has faults; keeping the current settings")
	w.text = unknown
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = faults
}

// use makes s the settings in use, as far as that can be done without a restart.
func (w *Watcher) use(s configs.Settings, faults []source.Fault) {
	now, restart := atRunTime(w.Fixed, s)
	w.mu.Lock()
	was := w.inUse
	news := slices.DeleteFunc(slices.Clone(restart), func(name string) bool { return slices.Contains(w.restart, name) })
	w.inUse, w.faults, w.restart = now, faults, restart
	w.mu.Unlock()
	if len(news) > 0 {
		w.log.Warn("some changed settings take effect only after a restart", "settings", news)
	}
	if reflect.DeepEqual(now, was) {
		return
	}
	w.log.Info("settings changed")
	journal.SetLevel(w.level, now.Log.Level)
	w.Changed(was, now)
}

// atRunTime returns want with all that only a restart can change as it is in
// fixed, and the names of what that was.
func atRunTime(fixed, want configs.Settings) (now configs.Settings, restart []string) {
	now = want
	keepFixed(&restart, "sources", &now.Sources, fixed.Sources)
	keepFixed(&restart, "node_name", &now.NodeName, fixed.NodeName)
	keepFixed(&restart, "families", &now.Families, fixed.Families)
	keepFixed(&restart, "masquerade_bit", &now.MasqueradeBit, fixed.MasqueradeBit)
	keepFixed(&restart, "http_address", &now.HTTPAddress, fixed.HTTPAddress)
	keepFixed(&restart, "metrics_address", &now.MetricsAddress, fixed.MetricsAddress)
	keepFixed(&restart, "status_address", &now.StatusAddress, fixed.StatusAddress)
	keepFixed(&restart, "nftables", &now.NFTables, fixed.NFTables)
	keepFixed(&restart, "ipvs", &now.IPVS, fixed.IPVS)
	restart = append(restart, configs.DifferentSources(fixed, want)...)
	now.OfSources = fixed.OfSources
	keepFixed(&restart, "health", &now.Health, fixed.Health)
	keepFixed(&restart, "limits", &now.Limits, fixed.Limits)
	keepFixed(&restart, "log.format", &now.Log.Format, fixed.Log.Format)
	return now, restart
}

// keepFixed leaves a setting as it is in fixed, and adds its name to restart if it differs.
func keepFixed[T any](restart *[]string, name string, now *T, fixed T) {
	if !reflect.DeepEqual(*now, fixed) {
		*restart = append(*restart, name)
	}
	*now = fixed
}
