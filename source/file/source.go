// Package file reads services from the files of a directory or of a server, and keeps reading. Package read parses a text,
// package watch reports changes of the directory, package keep stores what a restart needs. A remote.Fetcher gives what a
// server has, as whole sets of texts (look_set.go); nothing that is about half-written files applies to them.
//
//	directory ──► look ──► observe ──► decide ──► hand ──► sink
//	  events      stat,    new         effective  one
//	  only wake   read,    version?    yet? held? step
//	  us          parse    (wait.go)   (hand.go)
//
// One goroutine, that of Run, decides. It looks at files, and reads and parses them on all cores. The store writes beside it.
//
// A file of up to 64 KiB is read within its step, so that files that are renamed or written together are one step. A larger
// one takes the same way beside Run (look_large.go), and its end is an event. On two cores with a load of 50,
// BenchmarkChange/beside made 8 changes of a small file in 5 s, next to one of 60,000 services that is replaced each
// second; with that read in the step, 8 took more than three minutes. Reading every file beside makes a change of
// one file no slower (a median of 6.5 ms in place of 6.1, of which 5 merge events), but has each file of
// a directory that is swapped be a step of its own.
//
// A change of a file takes this way:
//
//  1. run (run.go) receives the event and calls step.
//  2. prepareLook and lookAt (look.go) find the files that may have changed. lookAt reads the text, and
//     take (look_probe.go) has read.NewVersion parse it into a read.Version.
//  3. handFirst or, later, handChanges (hand.go) calls collect. There observe (wait.go) sets from when on the version
//     is taken for complete, and decide (hand.go) binds lists of endpoints to services and asks the guard what of that is held.
//  4. The sink gets the result as one source.Changes.
//
// What a state knows of the versions of its file, in the order in which one version passes through them:
//
//   - next: found, and not yet known to be complete.
//   - seen: the last one that was complete. The guard may hold it, or it may be broken.
//   - used: the last one that was handed to the sink.
//   - sent: handed to the sink, which has not answered yet.
//   - good: the last one that the sink accepted.
//
// Of a file that refers to lists of endpoints, bound and inUse are used and good with these, see read.Bound. What a list
// says decides whether it is used; a service that it does not fit keeps the version that it has.
//
// Words:
//
//   - version: what a file said at one time: services and faults, or why it cannot be read. read.Gone: there is no file.
//   - probe: one look at one name.
//   - held: a complete version that waits for the operator, because of the guard or in manual mode.
//   - pin: the decision on one version, held or rolled back.
//   - trial: an apply that is not confirmed yet.
//
// Files are named by stage. Each stage uses only stages below it, and no two files use each other; a test checks
// both. Run calls many stages itself, so the order is not that of the calls.
//
//	run        the goroutine of Run: what happened, and a step where there is work
//	command    what others have it do: rollback, apply, confirm
//	look       which version each file has now, and had before this start
//	events     what wakes us
//	hand       what counts is handed to the sink, and what the sink accepts
//	wait       whether a version may be half written, and when it counts
//	trial      an apply that nobody confirms goes back, also at the next start
//	guard      what counts and is not used: a change that is held, a version with another in its place
//	bind       services with the endpoints of files of their own
//	keep       what the next start must know
//	outgoing   a version that counts, as a unit for the sink
//	source     the Source and its parts: what all of the above share
//	state      what is known of a file, and one look at it
//	removals   what changes may remove, and what they removed lately
//	check      what is in the directory beside service files, and who may write it
//	decisions  what was decided of versions, against what the files say
//	place      where texts are: the directory that was read last, or a server
//	timing     when the next step is, and how long anything waits
//
// Stale beats partial: a file that is broken, empty or cannot be read keeps the
// services it had, and a version that takes something away waits a moment, for
// it may be half written.
package file

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/sys/unix"

	"svcproxy.dev/svcproxy/internal/lately"
	"svcproxy.dev/svcproxy/internal/wake"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/decode"
	"svcproxy.dev/svcproxy/source/disk"
	"svcproxy.dev/svcproxy/source/keep"
	"svcproxy.dev/svcproxy/source/read"
	"svcproxy.dev/svcproxy/source/remote"
	"svcproxy.dev/svcproxy/source/watch"
)

// Name is what the source is called.
const Name = read.Source

// Options say what a Source reads.
type Options struct {
	Dir   string
	Rules read.Rules
	Log   *slog.Logger // nil: none

	// StateDir is where last good versions are kept over a restart; empty:
	// nowhere. With it, the Source must be told what is Accepted.
	StateDir string

	Guard Guard // see SetGuard
	Keep  int   // how many versions of each file the history has; 0: 20

	// Poll is how often all contents are read to find what no event told; 0: 30 s.
	Poll time.Duration

	// Of a source whose texts are of a server, in place of Dir and Poll:
	Fetcher    remote.Fetcher
	Name       string   // of the source
	Server     string   // as status shows it
	Beside     bool     // other sources are served too: they do not wait for a server that cannot be reached
	AllowEmpty []string // see SetAllowEmpty
}

// What a Source has, from what all need to what only Run does. Each part uses those before it only.
type (
	// A table is what is known of the files.
	table struct {
		source     string // its name, as settings and units have it
		place      place
		dir        string    // empty: texts are of a server
		where      slog.Attr // the same, for the log
		server     *server   // nil: they are in a directory
		log        *slog.Logger
		rules      read.Rules
		revision   atomic.Int64 // how often Revalidate was called
		store      *keep.Store  // nil: nothing survives a restart
		disks      *disk.Asker
		background sync.WaitGroup // what runs beside Run
		reload     chan struct{}  // has Run read everything again

		mu        sync.Mutex // guards what follows, of which only Run writes, and Accepted some fields of states
		files     map[string]*state
		held      map[string]*state // those of files that the guard holds
		decisions decisions
		synced    bool
		dirErr    string // why the directory was not listed, as last logged
		watchErr  string // why it is not watched, as last logged
	}

	// lists are how endpoints of files of their own come to services, and what of that and of services the next start must know.
	lists struct {
		table
		newLists map[string]bool       // files of endpoints that are used otherwise than the files have them that refer to them; guarded by mu
		keeping  map[string]*state     // service files of which a list does not fit some services; guarded by mu
		entries  map[string]keep.Entry // to be recorded of lists and of what was removed, once decisions are
		refit    bool                  // a file that did not fit its lists may do so now
		boundBy  int64                 // the revision by which services were bound to lists
	}

	// guarding holds changes.
	guarding struct {
		lists
		guardSet atomic.Pointer[Guard]
		removed  recentRemovals
	}

	// restoring puts earlier versions in the place of what files say.
	restoring struct {
		guarding
		parseCopy read.Parser // of what was accepted
	}

	// waits are for what may be half written, or is read beside.
	waits struct {
		restoring
		parse      read.Parser       // of what files say
		todo       work              // at the next step
		waiting    map[string]*state // those of files with a version that does not count yet
		lastChange time.Time         // when a file was last found that came, went or was replaced

		largeReads map[string]*largeRead // of large files, by name
		largeDone  chan *largeRead       // those that have ended
		texts      *semaphore.Weighted   // bytes of those that are in memory
		slots      chan struct{}         // as many as can be parsed at a time
	}

	// looks find out what is in the directory.
	looks struct {
		waits
		statfs    func(string, *unix.Statfs_t) error
		directory *serviceDir
		mounts    watch.Mounts
		watcher   *watch.Watcher                                              // nil: polls only
		open      func(dir string, disks *disk.Asker) (*watch.Watcher, error) // nil: there is to be none

		nextUnwatched time.Time
		renamedFrom   string // the path that the last event was about, if it was a rename of that
	}
)

// A Source is a directory of service files, or a server that has them. It implements source.Source.
type Source struct {
	looks
	poll     time.Duration
	nextPoll time.Time   // of contents
	reloaded atomic.Bool // what does not exist was removed: Reload was called
	around   lately.Value[source.Status]

	steps    int                    // how often step has run to its end
	commands chan func(source.Sink) // what others have the goroutine of Run do
	decideMu sync.Mutex             // held from reading what is decided until that is done
}

// work is what to look at next.
type work struct {
	all   bool // list the directory
	hash  bool // and read files even where nothing seems to have changed
	names map[string]bool

	renamed map[string]bool // of names, what was renamed there
}

func newWork() work { return work{names: map[string]bool{}, renamed: map[string]bool{}} }

// maxTexts is how much text of large files may be in memory at a time, in bytes, to be read and parsed. A larger file
// is there alone.
const maxTexts = 64 << 20

// New returns a Source that does nothing before Run.
func New(o Options) *Source {
	s := &Source{poll: cmp.Or(o.Poll, hashPoll), commands: make(chan func(source.Sink))}
	s.source, s.dir, s.where = cmp.Or(o.Name, Name), o.Dir, slog.String("dir", o.Dir)
	s.log, s.rules = cmp.Or(o.Log, slog.New(slog.DiscardHandler)), o.Rules
	s.reload = make(chan struct{}, 1)
	s.files, s.held, s.decisions.pins = map[string]*state{}, map[string]*state{}, map[string]*pin{}
	s.newLists, s.keeping, s.entries = map[string]bool{}, map[string]*state{}, map[string]keep.Entry{}
	s.todo, s.waiting, s.largeReads = newWork(), map[string]*state{}, map[string]*largeRead{}
	s.largeDone, s.slots = make(chan *largeRead), make(chan struct{}, runtime.GOMAXPROCS(0))
	s.disks, s.texts = disk.NewAsker(o.Dir), semaphore.NewWeighted(maxTexts)
	s.rules.Writer = s.disks.Writer
	if s.place = (directory{o.Dir, s.disks, s.rules.MaxSize()}); o.Fetcher != nil {
		s.server = newServer(o.Fetcher, s.source, o.Server, s.log)
		s.server.beside = o.Beside
		s.place, s.where = s.server, slog.String("source", s.source)
		s.SetAllowEmpty(o.AllowEmpty)
	}
	s.parse, s.parseCopy = read.Rules.ParseNew, read.Rules.ParseCopy
	s.directory, s.mounts, s.statfs = newServiceDir(o.Dir, o.StateDir), -1, unix.Statfs
	s.around = lately.Value[source.Status]{Find: s.lookAround, Patience: aroundPatience}
	if o.StateDir != "" {
		s.store = keep.New(o.StateDir, s.log)
	}
	s.SetGuard(o.Guard)
	s.SetKeep(o.Keep)
	return s
}

// Reload makes Run read everything again now. A file that a power failure may have
// taken counts as removed from then on. It may be called from any goroutine.
func (s *Source) Reload() {
	s.reloaded.Store(true)
	s.wake()
	if s.server != nil {
		s.server.reload()
	}
}

func (s *table) wake() { wake.Once(s.reload) }

// Revalidate makes Run read everything again now, and hold also what has not changed to
// Rules.Check, whose answers have. It may be called from any goroutine.
func (s *Source) Revalidate() {
	s.revision.Add(1)
	s.wake()
}

// SetGuard sets which changes are held from now on. With a Guard that holds none, those
// that are held go through. It may be called from any goroutine.
func (s *Source) SetGuard(g Guard) {
	if was := s.guardSet.Swap(&g); was != nil && *was != g {
		s.wake()
	}
}

// SetAllowEmpty sets of which sources, or answers of a server, one is used also where it became empty. It may be called
// from any goroutine.
func (s *Source) SetAllowEmpty(names []string) {
	if s.server != nil {
		s.server.allowed.Store(&names)
		wake.Once(s.server.given)
	}
}

// SetKeep sets how many versions of each file the history has from now on, 0: 20. It
// may be called from any goroutine.
func (s *Source) SetKeep(n int) {
	if s.store != nil {
		s.store.SetKeep(n)
	}
}

// aroundPatience is how long a Status waits for what there is about the directory beside its service files: a link of the
// directory may lead to a disk that does not answer.
const aroundPatience = time.Second

// lookAround returns what a status says of that.
func (s *Source) lookAround() (st source.Status) {
	if remote := watch.RemoteName(s.dir, s.statfs); remote != "" {
		st.Warnings = append(st.Warnings, fmt.Sprintf("%s is on %s, where changes by other hosts come without events: they are noticed within %v, or at once after a reload", source.Quote(s.dir), remote, s.poll))
	}
	faults := CheckDir(s.dir, s.knownNames(), s.rules.Shared())
	for _, f := range faults {
		f.Warning = false // the word; a status shows it among warnings
		st.Warnings = append(st.Warnings, f.String())
	}
	st.Notes = len(faults)
	return st
}

// knownNames returns the names of the files that Status lists.
func (s *table) knownNames() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make(map[string]bool, len(s.files))
	for name, f := range s.files {
		names[name] = f.seen != nil
	}
	return names
}

// Status implements source.Source.
func (s *Source) Status() source.Status {
	if s.server != nil {
		return s.Known()
	}
	around, inTime := s.around.Get()
	st := s.Known()
	if !inTime {
		st.Warnings = append(st.Warnings, fmt.Sprintf("%s, or what a link in it leads to, does not answer: what is there beside service files is as last known", source.Quote(s.dir)))
	}
	st.Warnings, st.Notes = append(st.Warnings, around.Warnings...), around.Notes
	return st
}

// Known is Status without what the directory has besides service files, for which it would
// have to be read.
func (s *Source) Known() source.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := source.Status{Source: s.source, Synced: s.synced}
	referred, misfits := s.referredTo(), s.misfitsByFile()
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		if f := s.files[name]; f.seen != nil {
			is := f.status(misfits[name])
			if f.isList() && !referred[name] {
				is.Faults = append(is.Faults, read.UnusedList(f.path))
			}
			st.Files = append(st.Files, is)
		}
	}
	if t := s.decisions.trial; t != nil && s.synced {
		st.Warnings = append(st.Warnings, fmt.Sprintf("svcproxy apply of %s goes back at %s unless svcproxy confirm follows", clock(t.Began), clock(t.Until)))
	}
	for _, t := range s.problems() {
		if t.why != "" {
			st.Warnings = append(st.Warnings, t.means+": "+t.why)
		}
	}
	if s.server != nil {
		about := s.server.State.Status()
		st.Connection, st.Warnings = about.Connection, append(about.Warnings, st.Warnings...)
	}
	return st
}

// referredTo returns the names of all lists that any file refers to, as it is or as it is used.
func (s *table) referredTo() map[string]bool {
	names := map[string]bool{}
	for _, f := range s.files {
		f.eachList(func(name string) { names[name] = true })
	}
	return names
}

// misfitsByFile returns what services in use find wrong with lists, by the list or, where that does not exist, by the file of the
// service. The caller holds s.mu.
func (s *lists) misfitsByFile() map[string][]source.Fault {
	of := map[string][]source.Fault{}
	for _, file := range sortedNames(s.keeping) {
		is := cmp.Or(s.keeping[file].inUse, &read.Bound{})
		for _, name := range sortedNames(is.Faults) {
			by := name
			if l := s.files[name]; l == nil || l.used == nil {
				by = file
			}
			if !decode.TooMany(of[by]) {
				of[by] = decode.Cap(s.path(by), append(of[by], is.Faults[name]...))
			}
		}
	}
	return of
}

// A problem is something that may hinder a Source.
type problem struct {
	kind  string
	means string
	why   string // empty: it does not
}

// problems returns all kinds. The caller holds s.mu.
func (s *table) problems() []problem {
	list := []problem{
		{"directory", "the directory of service files cannot be read, and services stay as they are", s.dirErr},
		{"watch", "service files cannot be watched, and are listed every second", s.watchErr},
		{kind: "last_good", means: "last good versions of service files cannot be kept"},
	}
	if s.store != nil {
		list[2].why = s.store.WriteError()
	}
	if s.server != nil {
		return list[2:]
	}
	return list
}

// Problems returns which kinds of trouble the source has, of all there are: its
// directory cannot be read, or not be watched, or last good versions not be kept.
func (s *lists) Problems() map[string]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	has := make(map[string]bool)
	for _, t := range s.problems() {
		has[t.kind] = t.why != ""
	}
	return has
}

// noteProblem keeps a problem for Status, and reports whether it is another than before.
func (s *table) noteProblem(trouble *string, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	why := read.ErrorText(err)
	same := why == *trouble
	*trouble = why
	return !same
}

func (s *table) path(name string) string { return s.place.path(name) }

func (s *table) newState(name string) *state { return &state{name: name, path: s.path(name)} }

// copyRules returns the rules for a text that was accepted once. Of a link nobody knows whose file it was.
func (s *table) copyRules(name string, isLink bool) read.Rules {
	rules := s.rules
	rules.Hidden, rules.From = isLink, s.place.origin(name)
	rules.From.Accepted = true
	return rules
}
