package daemon

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/file"
)

// A sourceType is a source that this build has.
type sourceType struct {
	name        string // as settings and units have it
	precedence  int    // of what two partial units want, that of the source with the lower number has it; each has its own
	open        func(sourceConfig) source.Source
	remote      bool // its status has a connection
	eligibility bool // it says whether load balancers may send to this host
}

// sourceTypes are all, in no order: those that a build may lack add themselves.
var sourceTypes = []sourceType{{name: file.Name, precedence: 10, open: openFiles}}

// byPrecedence returns the source types in the order in which they have what several want.
func byPrecedence() []sourceType {
	return slices.SortedFunc(slices.Values(sourceTypes), func(a, b sourceType) int { return cmp.Compare(a.precedence, b.precedence) })
}

// A sourceConfig is what a source is opened with.
type sourceConfig struct {
	configs.Settings
	configDir, stateDir, version string
	several                      bool       // other sources are served too
	rules                        file.Rules // for what people write
	log                          *slog.Logger
	host                         clusterListener
}

// A clusterListener is told, once a source runs, what a cluster says of this host.
type clusterListener interface {
	joined(*source.ClusterNode)
	setServiceCIDRs([]netip.Prefix)
}

// What a source does besides, if it has the method.
type (
	reloader     interface{ Reload() }                   // reads everything again
	revalidator  interface{ Revalidate() }               // holds all to what the mode now in use can do
	accepter     interface{ Accepted([]source.Unit) }    // is told which units were accepted whole, of any source
	troubled     interface{ Problems() map[string]bool } // knows kinds of what may hinder it
	healthTeller interface {
		HealthPortFailed(service source.Key, port uint16, why string)
	}
)

var _ = []any{reloader(&file.Source{}), revalidator(&file.Source{}), accepter(&file.Source{}), troubled(&file.Source{})}

// each calls do with the sources that have the methods of T.
func each[T any](list []source.Source, do func(T)) {
	for _, s := range list {
		if t, ok := s.(T); ok {
			do(t)
		}
	}
}

// asked returns those of the source types that settings ask for, by precedence.
func asked(s configs.Settings) []sourceType {
	return slices.DeleteFunc(byPrecedence(), func(t sourceType) bool { return !slices.Contains(s.Sources, t.name) })
}

// supportedSources returns which source of the settings this build does not have.
func supportedSources(s configs.Settings) error {
	var built []string
	for _, t := range byPrecedence() {
		built = append(built, strconv.Quote(t.name))
	}
	for _, name := range s.Sources {
		if !slices.Contains(built, strconv.Quote(name)) {
			return fmt.Errorf("source %q is not in this build; set sources to [%s]", name, strings.Join(built, ", "))
		}
	}
	return nil
}

func openFiles(c sourceConfig) source.Source {
	return file.New(file.Options{
		Dir: c.configDir, StateDir: c.stateDir, Rules: c.rules, Log: c.log,
		Guard: guardOf(c.Settings), Keep: c.History.Keep,
	})
}

// several reports whether more than one source is served.
func several(s configs.Settings) bool { return len(s.Sources) > 1 }

// withRefusals adds to the objects of an API what of them others have.
func withRefusals(st source.Status, refusals []claims.Refusal) []source.FileStatus {
	for _, r := range refusals {
		if r.Unit.Source != st.Source || st.Connection == nil {
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
