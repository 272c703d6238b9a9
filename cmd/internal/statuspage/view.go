package statuspage

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
)

const (
	// perPage is how many services, or files, a page lists.
	perPage = 50

	// maxRows is how many addresses a page lists for each service, and likewise endpoints, warnings and announced addresses.
	// maxRowsAlone is the limit on a page with a single service.
	maxRows      = 12
	maxRowsAlone = 1_000

	// maxShown is how many problems the first page lists, so that they fit on one screen.
	maxShown = 20

	// maxFiles is how many files the first page lists.
	maxFiles = 10

	// maxText is the maximum length of a text on a page, in characters.
	maxText = 400
)

//go:embed page.html
var pageText string

// words are the functions of the template. Every text from files, programs and servers goes through "text".
var words = template.FuncMap{
	"text":    clip,
	"grouped": control.Grouped,
	"upper":   strings.ToUpper,
}

var pages = template.Must(template.New("page").Funcs(words).Parse(pageText))

// clip escapes and shortens a text for a page.
func clip(s string) string { return source.Clip(s, maxText) }

// A head is the data at the top of every page.
type head struct {
	Style    template.CSS
	Question question
	Summary  *control.Summary
	Late     bool // the facts could not be refreshed in time
	At       time.Time
	Up, Sync string
	Here     string   // the path of the page
	Other    link     // to the other page
	Refresh  []choice // how often the page reloads itself
}

// A link is a text with a link, or only a text if To is empty.
type link struct{ Text, To string }

// A choice is a link that may be the current choice.
type choice struct {
	link
	Chosen bool
}

// An overview is the data of the template of /.
type overview struct {
	Head      head
	Counts    []count
	Problems  []problem
	More      int // problems that are left out
	Warnings  []string
	MoreWarn  int
	Drains    []string
	MoreDrain int

	States, Namespaces []choice
	Found              int
	Services           []service
	Pages              []choice

	Sessions  []session
	Withheld  []report.AnnouncedAddress
	MoreHeld  int
	Announced string
	Files     []file
	MoreFiles int
	Versions  []version
}

// A count is a number of services or endpoints in one state.
type count struct {
	link
	N   int
	Bad bool
}

// A problem is a row of the table of problems.
type problem struct {
	Subject link
	Address string
	State   string
	Why     string
	Place   string
}

type service struct {
	report.ServiceStatus
	To            string // link to a page with only this service
	File          string
	Changed       string // time since the last change of its file; empty: unknown
	Labels        []string
	Counted       bool
	Rate          string
	Active        int
	Addresses     []address
	MoreAddr      int
	MoreAnnounced int
	MoreWarn      int
	Rows          []endpoint
	MoreRows      int
	NoAddresses   string
}

type address struct {
	report.FrontendStatus
	Bad bool
	Say string
}

type endpoint struct {
	Address, State, Class string
	Share, Weight, Where  string
	Active, Since, Why    string
	Command               string // drain command to copy; empty: none
}

type session struct {
	announcer.Session
	Bad      bool
	For, Why string
	Routes   int
}

type file struct {
	Path, State, For, Why string
	Services              int
	Bad                   bool
}

type version struct {
	keep.Revision
	When, Changed string
}

// overview answers with the first page.
func (p *Page) overview(r *http.Request) (kind, func(io.Writer) error, error) {
	q, err := questionOf(r.URL.RawQuery, pageKeys)
	return htmlText, func(w io.Writer) error {
		f, inTime, err := p.known()
		if err != nil {
			return err
		}
		return pages.ExecuteTemplate(w, "overview", p.view(f, inTime, q))
	}, err
}

// files answers with all files.
func (p *Page) files(r *http.Request) (kind, func(io.Writer) error, error) {
	q, err := questionOf(r.URL.RawQuery, []string{"q", "page", "refresh"})
	return htmlText, func(w io.Writer) error {
		f, inTime, err := p.known()
		if err != nil {
			return err
		}
		list := slices.DeleteFunc(filesOf(f, time.Now()), func(x file) bool { return !contains(x.Path, q.Text) && !contains(x.State, q.Text) })
		v := overview{Head: headOf(f, inTime, q, "/files"), Found: len(list)}
		v.Files, v.Pages = paged(list, &q, "/files")
		return pages.ExecuteTemplate(w, "files", v)
	}, err
}

// headOf returns the top of a page.
func headOf(f *facts, inTime bool, q question, here string) head {
	now := time.Now()
	h := head{
		Style: template.CSS(style), Question: q, Summary: &f.summary, Late: !inTime, At: f.at,
		Up: control.Age(now, f.summary.Started), Sync: f.summary.LastSync(now), Here: here, Other: link{"all files", "/files"},
	}
	if here != "/" {
		h.Other = link{"services", "/"}
	}
	for _, s := range []int{0, 5, defaultRefresh, 60} {
		other := q
		other.Refresh = s
		text := fmt.Sprintf("%d s", s)
		if s == 0 {
			text = "never"
		}
		h.Refresh = append(h.Refresh, choice{link{text, other.link(here)}, q.Refresh == s})
	}
	return h
}

// view returns what the first page shows.
func (p *Page) view(f *facts, inTime bool, q question) overview {
	now := time.Now()
	h, _ := p.history.Get()
	v := overview{Head: headOf(f, inTime, q, "/"), Counts: counts(f, q)}
	v.problems(f, now)
	v.Warnings, v.MoreWarn = f.summary.Warnings, f.summary.Left.Warnings
	for _, d := range f.summary.Drains {
		v.Drains = append(v.Drains, control.DrainText(now, d))
	}
	v.MoreDrain = f.summary.Left.Drains

	v.States, v.Namespaces = []choice{{link{"any", ""}, q.State == ""}}, []choice{{link{"any", ""}, q.Namespace == ""}}
	for _, s := range report.FilterStates() {
		v.States = append(v.States, choice{link{s, s}, s == q.State})
	}
	for _, n := range f.namespaces {
		v.Namespaces = append(v.Namespaces, choice{link{n, n}, n == q.Namespace})
	}
	v.services(p, &q, h, now)

	for _, s := range f.summary.Announced.Sessions {
		v.Sessions = append(v.Sessions, session{s, !s.Up(), control.Age(now, s.Since), s.Why(), s.IPv4.Announced + s.IPv6.Announced})
	}
	v.Withheld, v.MoreHeld = f.summary.Announced.Withheld, f.summary.Announced.Left
	for _, means := range slices.Sorted(maps.Keys(f.summary.Announced.Count)) {
		v.Announced += fmt.Sprintf("%s by %s. ", control.Counted(f.summary.Announced.Count[means], "address"), means)
	}

	v.Files, v.MoreFiles = cut(filesOf(f, now), maxFiles)
	for _, r := range h.newest {
		v.Versions = append(v.Versions, version{r, control.Age(now, r.At), control.ChangedIn(r)})
	}
	return v
}

// counts returns the number of services and endpoints in each state, with links to lists of them.
func counts(f *facts, q question) (list []count) {
	q.Page = 1
	to := func(state string) string {
		q.State = state
		return q.link("/") + "#services"
	}
	for _, action := range report.ServiceActions() {
		if n := f.counts.Services[action]; n > 0 {
			bad := action != policy.Balance.String() && action != "none" && action != "disabled" && action != "pending"
			list = append(list, count{link{control.Counted(n, "service") + ": " + action, to(action)}, n, bad})
		}
	}
	for _, state := range policy.EndpointStates() {
		if n := f.counts.Endpoints[state]; n > 0 {
			list = append(list, count{link{control.Counted(n, "endpoint") + ": " + state, to(state)}, n, state == policy.Down.String()})
		}
	}
	return list
}

// problems fills in the problems: those that svcproxy status lists, files that are not accepted, and endpoints that fail their
// check.
func (v *overview) problems(f *facts, now time.Time) {
	s := &f.summary
	if !s.Ready {
		v.Problems = append(v.Problems, problem{Subject: link{Text: "svcproxy"}, State: "STARTING", Why: "the first sync is not complete"})
	}
	for _, d := range s.Drains {
		if d.Target.Node {
			v.Problems = append(v.Problems, problem{Subject: link{Text: "this host"}, State: "DRAINED", Why: control.DrainText(now, d)})
		}
	}
	for _, x := range s.Broken {
		at, why := control.FirstFault(x)
		if x.State == source.Held {
			why = cmp.Or(why, "svcproxy confirm lets it through")
		}
		v.Problems = append(v.Problems, problem{
			Subject: link{Text: at}, State: strings.ToUpper(string(x.State)),
			Why: fmt.Sprintf("for %s, %s. %s", control.Age(now, x.Since), control.Counted(x.Services, "service"), why),
		})
	}
	for _, x := range s.Problems {
		v.Problems = append(v.Problems, problem{serviceLink(x.Subject, x.Place != ""), x.Address, x.State, x.Reason, x.Place})
	}
	v.Problems = append(v.Problems, f.down...)
	v.More = s.Left.Problems + s.Left.Broken + max(0, f.counts.Endpoints[policy.Down.String()]-len(f.down))
	slices.SortStableFunc(v.Problems, func(a, b problem) int { return toInt(a.State == "") - toInt(b.State == "") }) // problems of the host last
	shown, more := cut(v.Problems, maxShown)
	v.Problems, v.More = shown, v.More+more
}

// serviceLink returns the name of a service with a link to it. For other names it returns a text without a link.
func serviceLink(name string, isService bool) link {
	namespace, short, _ := strings.Cut(name, "/")
	if !isService || !source.IsLabel(namespace) || !source.IsLabel(short) {
		return link{Text: name}
	}
	q := question{Services: source.Selection{name}, Page: 1, Refresh: defaultRefresh}
	return link{name, q.link("/") + "#services"}
}

// services fills in the requested services.
func (v *overview) services(p *Page, q *question, h history, now time.Time) {
	s := p.Snapshot()
	keys := report.Find(s, q.filter())
	v.Found = len(keys)
	var here []source.Key
	here, v.Pages = paged(keys, q, "/")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	most := maxRows
	if len(keys) == 1 {
		most = maxRowsAlone
	}
	for list := range inBatches(s, here) {
		p.AddTraffic(ctx, list)
		for _, st := range list {
			row := serviceOf(st, most, now)
			if at, ok := h.changed[filepath.Base(st.Unit)]; ok {
				row.Changed = control.Age(now, at)
			}
			v.Services = append(v.Services, row)
		}
	}
}
