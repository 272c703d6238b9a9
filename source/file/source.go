// Package file reads services from the files of a directory, and keeps reading.
//
//	directory ──► look ──► take ──► settle ──► sink
//	  events      stat,    new      now, or
//	  only wake   read,    version? after a
//	  us          parse             quiet time
//
// One goroutine, that of Run, does all of it but for reading large files, which others
// do beside it (beside.go).
//
// Stale beats partial: a file that is broken, empty or cannot be read keeps the
// services it had, and a version that takes something away waits a moment, for
// it may be half written. What was accepted is kept in a state directory, so
// that a restart knows it (store.go).
package file

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"svcproxy/source"
)

// Name is what the source is called, in settings and in units.
const Name = "file"

// Waits of a running Source.
const (
	// merge is how long events are collected that belong to one write in place, or
	// to many files written at once.
	merge = 5 * time.Millisecond

	// quietTime is how long a file must have been left alone before a version
	// of it counts that takes something away, or that is broken.
	quietTime = 200 * time.Millisecond

	// longTime is for how long a file must have been changing all the time for a
	// version to count because nobody has it open.
	longTime = time.Second

	// longestTime is how long anything waits.
	longestTime = 2 * time.Second

	// openPoll is how often a file is looked at that waits because somebody has it
	// open to write it: no event tells that it is closed.
	openPoll = 20 * time.Millisecond

	// goneTime is how long a file must be missing before it counts as removed:
	// editors have a moment without the file.
	goneTime = 300 * time.Millisecond

	// blindPoll is how often the directory is listed while it cannot be watched.
	blindPoll = time.Second

	// stopTime is how long the end of Run may wait for the disk, or for a long text.
	stopTime = 500 * time.Millisecond

	// hashPoll is how often contents are compared, for what no event told.
	hashPoll = 30 * time.Second
)

// Options say what a Source reads.
type Options struct {
	Dir   string
	Rules Rules
	Log   *slog.Logger // nil: none

	// StateDir is where last good versions are kept over a restart; empty:
	// nowhere. With it, the Source must be told what is Accepted.
	StateDir string

	// Poll is how often all contents are read to find what no event told; 0: 30 s.
	Poll time.Duration
}

// A Source is a directory of service files. It implements source.Source.
type Source struct {
	dir     string
	log     *slog.Logger
	poll    time.Duration
	parse   parser
	reload  chan struct{}
	rules   atomic.Int64 // how often Judge was called
	settled atomic.Bool  // what does not exist was removed: Reload was called
	store   *store       // nil: nothing survives a restart

	maxSize int // of the largest file to read

	// Of the goroutine of Run.
	watcher  *watcher                           // nil: polls only
	open     func(dir string) (*watcher, error) // nil: there is to be none
	todo     work
	nextPoll time.Time // of contents
	home     *home
	mounts   mounts

	nextGlance time.Time
	changed    time.Time // when a file was last found that came, went or was replaced
	from       string    // the path that the last event was about, if it was a rename of that

	waiting map[string]*state // those of files with a version that does not count yet

	loads  map[string]*load // of large files, by name
	loaded chan *load       // those that have ended
	slots  chan struct{}    // as many as can be read at a time
	others sync.WaitGroup   // what runs beside Run

	keeping sync.Mutex // held from finding out what is to be recorded until it is put; taken before mu

	mu       sync.Mutex // guards what follows, of which only Run writes, and Accepted some fields of states
	files    map[string]*state
	synced   bool
	dirErr   string // why the directory was not listed, as last logged
	watchErr string // why it is not watched, as last logged
}

// work is what to look at next.
type work struct {
	all   bool // list the directory
	hash  bool // and read files even where nothing seems to have changed
	names map[string]bool

	placed map[string]bool // of names, what was renamed there
}

func newWork() work { return work{names: map[string]bool{}, placed: map[string]bool{}} }

// New returns a Source that does nothing before Run.
func New(o Options) *Source {
	s := &Source{
		dir: o.Dir, log: o.Log, poll: o.Poll, parse: o.Rules.parseNew, maxSize: o.Rules.maxSize(),
		reload:  make(chan struct{}, 1),
		todo:    newWork(),
		waiting: map[string]*state{}, files: map[string]*state{},
		loads: map[string]*load{}, loaded: make(chan *load), slots: make(chan struct{}, runtime.GOMAXPROCS(0)),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.poll == 0 {
		s.poll = hashPoll
	}
	s.home, s.mounts = newHome(o.Dir, o.StateDir), -1
	if o.StateDir != "" {
		s.store = newStore(o.StateDir, s.log)
	}
	return s
}

// Reload makes Run read everything again now. A file that a power failure may have
// taken counts as removed from then on. It may be called from any goroutine.
func (s *Source) Reload() {
	s.settled.Store(true)
	s.again()
}

func (s *Source) again() {
	select {
	case s.reload <- struct{}{}:
	default: // asked for already
	}
}

// Judge makes Run read everything again now, and hold also what has not changed to
// Rules.Check, whose answers have. It may be called from any goroutine.
func (s *Source) Judge() {
	s.rules.Add(1)
	s.again()
}

// Status implements source.Source.
func (s *Source) Status() source.Status {
	around := Around(s.dir)
	s.mu.Lock()
	defer s.mu.Unlock()
	st := source.Status{Source: Name, Synced: s.synced}
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		if f := s.files[name]; f.seen != nil {
			st.Files = append(st.Files, f.status())
		}
	}
	for _, t := range s.troubles() {
		if t.why != "" {
			st.Warnings = append(st.Warnings, t.means+": "+t.why)
		}
	}
	for _, f := range around {
		f.Warning = false // the word; a status shows it among warnings
		st.Warnings = append(st.Warnings, f.String())
	}
	return st
}

// A trouble is something that may hinder a Source.
type trouble struct {
	kind  string
	means string
	why   string // empty: it does not
}

// troubles returns all kinds. The caller holds s.mu.
func (s *Source) troubles() []trouble {
	list := []trouble{
		{"directory", "the directory of service files cannot be read, and services stay as they are", s.dirErr},
		{"watch", "service files cannot be watched, and are listed every second", s.watchErr},
		{kind: "last_good", means: "last good versions of service files cannot be kept"},
	}
	if s.store != nil {
		list[2].why = s.store.trouble()
	}
	return list
}

// Troubles returns which kinds of trouble the source has, of all there are: its
// directory cannot be read, or not be watched, or last good versions not be kept.
func (s *Source) Troubles() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	has := make(map[string]bool)
	for _, t := range s.troubles() {
		has[t.kind] = t.why != ""
	}
	return has
}

// Run implements source.Source. It returns nil when ctx ends, and never before.
func (s *Source) Run(ctx context.Context, sink source.Sink) error {
	warnRemote(s.log, s.dir, unix.Statfs)
	s.open = newWatcher
	s.openWatcher()
	defer func() {
		if s.watcher != nil {
			s.watcher.close()
		}
	}()
	s.mounts = openMounts()
	defer s.mounts.close()
	s.run(ctx, sink)
	return nil
}

func (s *Source) run(ctx context.Context, sink source.Sink) {
	var events <-chan fsnotify.Event
	var errs <-chan error
	if s.store != nil {
		s.store.load()
		s.home.load()
		s.others.Go(func() { s.store.run(ctx) })
	}
	defer s.leave()
	next := newAlarm()
	defer next.timer.Stop()
	for {
		if s.watcher != nil {
			events, errs = s.watcher.Events, s.watcher.Errors
		}
		select {
		case <-ctx.Done():
			return
		case <-s.reload:
			if s.settled.Swap(false) {
				s.giveUp()
			}
			s.todo.all, s.todo.hash = true, true
			next.within(merge)
		case ev := <-events:
			s.note(ev, next)
		case err := <-errs: // events were lost, in an overflow of the kernel's queue or else
			s.log.Warn("watching service files; listing all of them", "dir", s.dir, "err", err)
			s.todo.all = true
			next.within(merge)
		case l := <-s.loaded:
			if s.loads[l.name] == l { // else it was dropped
				l.ended = true
				next.soon()
			}
		case <-next.timer.C:
			next.rings(s.step(ctx, sink))
		}
	}
}

// note adds what an event is about to the work to do, if it is about us.
func (s *Source) note(ev fsnotify.Event, next *alarm) {
	from := s.from // the kernel tells of both ends of a rename at once
	s.from = ""
	if ev.Has(fsnotify.Rename) {
		s.from = ev.Name
	}
	about := s.classify(ev)
	switch name := about.name; {
	case isServiceFile(name):
		s.todo.names[name] = true
		s.todo.placed[name] = ev.Has(fsnotify.Create) && from != "" && from != ev.Name
		if ev.Has(fsnotify.Create) && s.inUse(name) {
			next.soon()
			return
		}
		next.within(merge)
	case about.all || len(about.links) > 0:
		next.within(merge)
	}
}

// classify returns what an event is about, after adding to the work to do what is to
// be looked at besides the file of that name.
func (s *Source) classify(ev fsnotify.Event) affair {
	about := s.watcher.classify(ev)
	s.todo.all = s.todo.all || about.all
	maps.Copy(s.todo.names, about.links)
	return about
}

// inUse tells whether there are services of a file. Another one that takes its
// name is complete if it was renamed or linked, and need not wait for more
// events. If it is only beginning to be written it lacks something yet, and
// so waits for the quiet time.
func (s *Source) inUse(name string) bool {
	f := s.files[name]
	return f != nil && f.handed() > 0
}

// openWatcher makes the watcher unless there is one: that fails where too many
// others of the user have one, and is tried at each look at the directory.
func (s *Source) openWatcher() {
	if s.watcher != nil || s.open == nil {
		return
	}
	w, err := s.open(s.dir)
	s.noteWatch(err)
	if err == nil {
		s.watcher = w
	}
}

// watch sets the watches that are needed now.
func (s *Source) watch() {
	s.openWatcher()
	if s.watcher == nil {
		return
	}
	var linked []string
	for name, f := range s.files {
		if f.link {
			linked = append(linked, name)
		}
	}
	s.noteWatch(s.watcher.follow(linked))
}

// watchLinks is watch where nothing has changed but these names, some of which are links.
func (s *Source) watchLinks(names []string) {
	if s.watcher == nil {
		return
	}
	isLink := func(name string) bool { return s.files[name] != nil && s.files[name].link }
	if err := s.watcher.followAgain(names, isLink); err != nil {
		s.noteWatch(err) // that there is no more of it, watch finds out
	}
}

// noteWatch logs once why changes are not told.
func (s *Source) noteWatch(err error) {
	switch { // what these say is not what is to be done
	case errors.Is(err, unix.EMFILE):
		err = fmt.Errorf("%w; raise fs.inotify.max_user_instances, or the limit of open files", err)
	case errors.Is(err, unix.ENOSPC):
		err = fmt.Errorf("%w; raise fs.inotify.max_user_watches", err)
	}
	if s.news(&s.watchErr, err) && err != nil {
		s.log.Warn("service files cannot be watched; listing them every second", "err", err)
	}
}

// noteDir logs once why there are no files to list.
func (s *Source) noteDir(err error) {
	switch {
	case !s.news(&s.dirErr, err):
	case err == nil:
		s.log.Info("the directory of service files can be read", "dir", s.dir)
	case s.knows():
		s.log.Error("the directory of service files cannot be read: services stay as they are", "dir", s.dir, "err", err)
	default:
		s.log.Error("the directory of service files cannot be read, and nothing is known of its services: not ready before it can", "dir", s.dir, "err", err)
	}
}

// news keeps a trouble for Status, and reports whether it is another than before.
func (s *Source) news(trouble *string, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	why := message(err)
	same := why == *trouble
	*trouble = why
	return !same
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (s *Source) path(name string) string { return filepath.Join(s.dir, name) }
