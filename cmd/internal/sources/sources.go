package sources

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/file"
	"svcproxy.dev/svcproxy/source/read"
)

// A Type is a source that this build has.
type Type struct {
	Name        string // as settings and units have it
	Precedence  int    // of what two partial units want, that of the source with the lower number has it; each has its own
	Open        func(Config) source.Source
	Remote      bool // its status has a connection
	Eligibility bool // it says whether load balancers may send to this host
}

// Types are all, in no order: those that a build may lack add themselves.
var Types = []Type{{Name: file.Name, Precedence: 10, Open: openFiles}}

// byPrecedence returns the source types in the order in which they have what several want.
func byPrecedence() []Type {
	return slices.SortedFunc(slices.Values(Types), func(a, b Type) int { return cmp.Compare(a.Precedence, b.Precedence) })
}

// A Config is what a source is opened with.
type Config struct {
	configs.Settings
	ConfigDir, StateDir, Version string
	Several                      bool       // other sources are served too
	Rules                        read.Rules // for what people write
	Log                          *slog.Logger
	Host                         *node.Host // is told what a cluster says of it, once the source runs
}

// What a source does besides, if it has the method.
type (
	Reloader     interface{ Reload() }                   // reads everything again
	Revalidator  interface{ Revalidate() }               // holds all to what the mode now in use can do
	Accepter     interface{ Accepted([]source.Unit) }    // is told which units were accepted whole, of any source
	Troubled     interface{ Problems() map[string]bool } // knows kinds of what may hinder it
	Holder       interface{ Held() int }                 // holds changes back until they are confirmed, and says how many
	HealthTeller interface {                             // hears that the health check port of a service cannot be listened on
		HealthPortFailed(service source.Key, port uint16, why string)
	}
)

var _ = []any{Reloader(&file.Source{}), Revalidator(&file.Source{}), Accepter(&file.Source{}), Troubled(&file.Source{})}

// Each calls do with the sources that have the methods of T.
func Each[T any](list []source.Source, do func(T)) {
	for _, s := range list {
		if t, ok := s.(T); ok {
			do(t)
		}
	}
}

// Asked returns those of the source types that settings ask for, by precedence.
func Asked(s configs.Settings) []Type {
	return slices.DeleteFunc(byPrecedence(), func(t Type) bool { return !slices.Contains(s.Sources, t.Name) })
}

// supportedSources returns which source of the settings this build does not have.
func supportedSources(s configs.Settings) error {
	var built []string
	for _, t := range byPrecedence() {
		built = append(built, strconv.Quote(t.Name))
	}
	for _, name := range s.Sources {
		if !slices.Contains(built, strconv.Quote(name)) {
			return fmt.Errorf("source %q is not in this build; set sources to [%s]", name, strings.Join(built, ", "))
		}
	}
	return nil
}

func openFiles(c Config) source.Source {
	return file.New(file.Options{
		Dir: c.ConfigDir, StateDir: c.StateDir, Rules: c.Rules, Log: c.Log,
		Guard: guardOf(c.Settings), Keep: c.History.Keep,
	})
}

// Several reports whether more than one source is served.
func Several(s configs.Settings) bool { return len(s.Sources) > 1 }

// AsUsed lays over what a source knows of its files what became of their claims.
func AsUsed(st source.Status, refusals []claims.Refusal) source.Status {
	refused := make(map[source.UnitID]claims.Refusal, len(refusals))
	for _, r := range refusals {
		refused[r.Unit] = r
	}
	st.Objects = withRefusals(st, refusals)
	for i := range st.Files {
		f := &st.Files[i]
		r, ok := refused[source.UnitID{Source: st.Source, Name: f.Path}]
		if !ok || f.State == source.Refused {
			continue
		}
		f.Faults = slices.Concat(f.Faults, r.Faults)
		switch {
		case !r.Stale: // not even what was last accepted can be used
			f.State, f.Since, f.Services = source.Refused, r.Since, 0
		case f.State == source.Accepted:
			f.State, f.Since = source.Stale, r.Since
		}
	}
	return st
}

// withRefusals adds to the objects of an API what of them others have.
func withRefusals(st source.Status, refusals []claims.Refusal) []source.FileStatus {
	files := make(map[string]bool, len(st.Files))
	for _, f := range st.Files {
		files[f.Path] = true
	}
	for _, r := range refusals {
		if r.Unit.Source != st.Source || st.Connection == nil || files[r.Unit.Name] {
			continue
		}
		i := slices.IndexFunc(st.Objects, func(o source.FileStatus) bool { return o.Path == r.Unit.Name })
		if i < 0 {
			st.Objects = append(st.Objects, source.FileStatus{Path: r.Unit.Name, State: source.Accepted, Since: r.Since, Services: 1})
			i = len(st.Objects) - 1
		}
		o := &st.Objects[i]
		o.Faults = slices.Concat(o.Faults, r.Faults)
		if !r.Partial {
			o.State, o.Since, o.Services = source.Refused, r.Since, 0
		}
	}
	return st.Objects
}
