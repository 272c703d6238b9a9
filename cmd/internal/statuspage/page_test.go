package statuspage

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/html"

	"svcproxy.dev/svcproxy/cmd/internal/announcer"
	"svcproxy.dev/svcproxy/cmd/internal/changes"
	"svcproxy.dev/svcproxy/cmd/internal/control"
	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/claims"
	"svcproxy.dev/svcproxy/proxier/conditions"
	"svcproxy.dev/svcproxy/proxier/policy"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/keep"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A world is the host that a Page shows in a test.
type world struct {
	*report.Snapshot
	summary control.Summary
	sources []source.Status
	history []keep.Revision
	asked   int // calls of Summary
}

func newWorld() *world {
	w := &world{Snapshot: &report.Snapshot{Snapshot: claims.Snapshot{Node: policytest.Node()}}}
	w.Syncs = []report.Family{{Family: policy.IPv4, Known: true}}
	w.summary.Daemon = control.Daemon{Version: "1.2.0", Ready: true, Healthy: true, Settings: control.Settings{Mode: "nftables", NodeName: "lb1"}}
	return w
}

// add adds a service.
func (w *world) add(name string, known policy.Conditions, edit ...func(*source.Service)) {
	svc := policytest.Service(edit...)
	svc.Name = name
	u := claims.UnitService{Unit: source.UnitID{Source: "file", Name: "/etc/svcproxy/" + name + ".toml"}}
	u.Service, u.Conditions = svc, known
	w.Services = append(w.Services, u)
	if r := policy.Resolve(svc, known, w.Node, policy.IPv4); r != nil {
		w.Syncs[0].Resolved = append(w.Syncs[0].Resolved, r)
	}
}

func (w *world) page() *Page {
	return New(Config{
		Summary: func(_ context.Context, most int) (control.Summary, []source.Status) {
			w.asked++
			loop := report.Summarize(w.Snapshot, most)
			s := w.summary
			s.Totals = loop.Totals
			s.Problems = append(slices.Clone(s.Problems), loop.Problems...)
			s.Left.Problems += loop.MoreProblems
			return s, w.sources
		},
		Changes: changes.New(changes.Config{
			Snapshot: func() *report.Snapshot { return w.Snapshot },
			Sources:  func() []source.Status { return w.sources },
			Sessions: func() []announcer.Session { return nil },
			Mode:     func() (name, why string) { return "nftables", "it is set" },
		}),
		Snapshot:   func() *report.Snapshot { return w.Snapshot },
		Counts:     func() report.Counts { return report.CountsOf(w.Snapshot, 0, report.Named{}) },
		AddTraffic: func(context.Context, []report.ServiceStatus) {},
		History:    func() ([]keep.Revision, error) { return w.history, nil },
	})
}

// get requests a path from a Page, and checks the status code.
func get(t *testing.T, p *Page, target string, want int) *httptest.ResponseRecorder {
	t.Helper()
	mux := http.NewServeMux()
	p.AddTo(mux)
	rec := httptest.NewRecorder()
	mux.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, target, nil))
	if rec.Code != want {
		t.Fatalf("%s: %d %s, want %d", target, rec.Code, rec.Body, want)
	}
	return rec
}

// A document is a page as a browser reads it.
type document struct{ *html.Node }

func parse(t *testing.T, text string) document {
	t.Helper()
	n, err := html.Parse(strings.NewReader(text))
	fatal.If(t, err)
	return document{n}
}

// all returns the elements of a kind.
func (d document) all(tag string) (list []*html.Node) {
	for n := range d.Descendants() {
		if n.Type == html.ElementNode && n.Data == tag {
			list = append(list, n)
		}
	}
	return list
}

// byID returns the text of an element; empty: there is none.
func (d document) byID(id string) string {
	for n := range d.Descendants() {
		if attr(n, "id") == id {
			return textOf(n)
		}
	}
	return ""
}

func attr(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

// textOf returns the text of an element, without style sheets.
func textOf(n *html.Node) string {
	var words []string
	for d := range n.Descendants() {
		if d.Type == html.TextNode && d.Parent.Data != "style" {
			words = append(words, strings.Fields(d.Data)...)
		}
	}
	return strings.Join(words, " ")
}

// tags are the elements that a page may have, and attributes are their attributes.
var (
	tags = strings.Fields("html head meta title style body header div h1 h2 h3 span p time b a main section table thead tbody tr th td ul li " +
		"form label select option input button small nav code")
	attributes = strings.Fields("lang charset name content http-equiv class id href method action value selected size type min max data-name aria-label")
)

// safe fails if a page has anything that could run, load something or lead to another site.
func (d document) safe(t *testing.T) {
	t.Helper()
	for n := range d.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		if !slices.Contains(tags, n.Data) {
			t.Errorf("there is an element <%s>", n.Data)
		}
		for _, a := range n.Attr {
			if !slices.Contains(attributes, a.Key) {
				t.Errorf("<%s> has an attribute %s=%q", n.Data, a.Key, a.Val)
			}
			if (a.Key == "href" || a.Key == "action") && !strings.HasPrefix(a.Val, "/") {
				t.Errorf("<%s> leads to %q", n.Data, a.Val)
			}
		}
	}
}

func TestPage(t *testing.T) {
	w := newWorld()
	w.add("web", policytest.Conditions("10.0.0.1 passed", "10.0.0.2 failed", "10.0.0.3 passed drained"), policytest.Probed,
		policytest.Endpoints("10.0.0.1", "10.0.0.2", "10.0.0.3"), func(s *source.Service) { s.Labels, s.Description = map[string]string{"team": "shop"}, "the shop" })
	w.add("empty", nil)
	w.summary.Announced.Sessions = append(w.summary.Announced.Sessions, announcer.Session{Peer: netip.MustParseAddr("192.0.2.254"), AS: 64512, State: "idle", LastError: "connection refused"})
	held := source.FileStatus{Path: "held.toml", State: source.Held, Since: time.Now().Add(-time.Minute), Services: 3}
	w.summary.Broken = []source.FileStatus{held}
	w.sources = []source.Status{{Source: "file", Synced: true, Files: []source.FileStatus{{Path: "web.toml", State: source.Accepted}, held}}}
	w.history = []keep.Revision{{Number: 7, File: "web.toml", At: time.Now().Add(-time.Hour), Services: 1}}
	p := w.page()
	rec := get(t, p, "/", http.StatusOK)
	d := parse(t, rec.Body.String())
	d.safe(t)
	problems := d.byID("problems")
	for _, want := range []string{
		"held.toml HELD for 1m0s, 3 services. svcproxy confirm lets it through", "default/empty 10.96.0.10:80/tcp REJECTS no endpoints", "default/web 10.0.0.2 DOWN",
	} {
		if !strings.Contains(problems, want) {
			t.Errorf("problems lack %q:\n%s", want, problems)
		}
	}
	all := textOf(d.Node)
	for _, want := range []string{
		"svcproxy 1.2.0, nftables mode, ready", "1 service: reject", "1 endpoint: down", "1 endpoint: draining", "team=shop", "the shop",
		"10.0.0.1 up 100 % 1 remote", "svcproxy drain default/web/10.0.0.1", "last change 1h0m ago",
		"192.0.2.254 64512 idle", "connection refused", "web.toml accepted", "7 web.toml 1h0m ago 1 +0 -0 ~0",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("the page lacks %q:\n%s", want, all)
		}
	}
	if strings.Contains(all, "svcproxy drain default/web/10.0.0.3") {
		t.Error("what is drained can be drained")
	}
	if before, _, _ := strings.Cut(rec.Body.String(), `id="services"`); !strings.Contains(before, `id="problems"`) {
		t.Error("problems are not first")
	}
	if m := d.all("meta"); attr(m[len(m)-1], "http-equiv") != "refresh" || attr(m[len(m)-1], "content") != "15" {
		t.Error("the page does not ask again by itself")
	}
	if d := parse(t, get(t, p, "/?refresh=0", http.StatusOK).Body.String()); attr(d.all("meta")[len(d.all("meta"))-1], "http-equiv") != "" {
		t.Error("a page that is not to ask again does")
	}
	d = parse(t, get(t, p, "/files?q=held", http.StatusOK).Body.String())
	if d.safe(t); len(d.all("tr")) != 2 || !strings.Contains(textOf(d.Node), "held.toml held 1m0s 3") {
		t.Errorf("files: %s", textOf(d.Node))
	}
}

func TestPageWithoutProblems(t *testing.T) {
	w := newWorld()
	w.add("web", nil, policytest.Endpoints("10.0.0.1"))
	if got := parse(t, get(t, w.page(), "/", http.StatusOK).Body.String()).byID("problems"); got != "No problems." {
		t.Errorf("%q", got)
	}
}

// hostile are texts of files, programs and servers.
var hostile = []string{
	`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, "</style><script>alert(1)</script>", "a\nb\r\n\x00\x1b[31m", "\xff\xfe\xc0\xaf", "\u202egnp.exe\u2066",
	"{{.Config}}", "javascript:alert(1)", strings.Repeat("<b>", 64<<10/3), "<!--", "]]>", `\u003cscript\u003e`,
}

// Texts of files, programs and servers appear on a page only as text of a bounded length, whatever they contain.
func TestPageEscapes(t *testing.T) {
	for _, text := range hostile {
		w := newWorld()
		w.add("web", policytest.Conditions("10.0.0.1 failed"), policytest.Probed, policytest.Endpoints("10.0.0.1"), func(s *source.Service) {
			s.Description, s.Labels, s.Pos = text, map[string]string{text: text}, source.Position{File: text, Line: 1, Col: 1}
		})
		w.Details = func(source.Key) map[netip.AddrPort]policy.Detail {
			at := netip.MustParseAddrPort("10.0.0.1:8080")
			return map[netip.AddrPort]policy.Detail{at: {Error: text, Asked: time.Now(), Drain: &policy.Drain{Reason: text, By: text, At: time.Now()}}}
		}
		broken := source.FileStatus{Path: text, State: source.Refused, Faults: []source.Fault{{Pos: source.Position{File: text}, Msg: text, Hint: text}}}
		w.sources = []source.Status{{Source: text, Files: []source.FileStatus{broken}}}
		s := &w.summary
		s.Version, s.Settings.Mode, s.Settings.NodeName = text, text, text
		s.Broken, s.Warnings, s.Restart = []source.FileStatus{broken}, []string{text}, []string{text}
		s.Problems = []report.Problem{{Subject: text, Address: text, State: text, Reason: text, Place: text}, {Subject: "a/" + text, Place: text}}
		s.Drains = []conditions.Drained{{Drain: policy.Drain{Reason: text, By: text}}}
		s.Announced.Withheld = []report.AnnouncedAddress{{Address: netip.MustParseAddr("10.0.0.1"), Means: "bgp", Reason: text}}
		s.Announced.Sessions = append(s.Announced.Sessions, announcer.Session{State: text, LastError: text, Notice: text})
		w.history = []keep.Revision{{File: text, Diff: keep.Diff{Names: []string{text}}}}
		p := w.page()
		for _, path := range []string{"/", "/files"} {
			body := get(t, p, path, http.StatusOK).Body.String()
			d := parse(t, body)
			d.safe(t)
			if i := strings.IndexFunc(body, func(r rune) bool { return r < ' ' && r != '\n' || r == '\u202e' || r == '\u2066' }); i >= 0 {
				t.Errorf("%s has %q", path, body[i:i+10])
			}
			if len(body) > 128<<10 {
				t.Errorf("%s of %.20q has %d bytes", path, text, len(body))
			}
			if strings.ToValidUTF8(body, "") != body {
				t.Errorf("%s of %q is not UTF-8", path, text)
			}
		}
		for path, c := range map[string]*checker{"/api/v1/status": newChecker(t), "/api/v1/services": newChecker(t), "/api/v1/files": newChecker(t)} {
			body := get(t, p, path, http.StatusOK).Body.Bytes()
			c.is(t, path, body)
			if strings.ContainsAny(string(body), "<>") {
				t.Errorf("%s of %.20q could be read as HTML", path, text)
			}
		}
	}
	// The values of a query appear again in the form, and nowhere else.
	w := newWorld()
	for _, query := range []string{`q="><script>alert(1)</script>`, "q=javascript:alert(1)", "service=\"><b>"} {
		key, value, _ := strings.Cut(query, "=")
		body := get(t, w.page(), "/?"+key+"="+strings.NewReplacer(`"`, "%22", "<", "%3C", ">", "%3E", " ", "+").Replace(value), http.StatusOK).Body.String()
		parse(t, body).safe(t)
	}
}

func TestHeaders(t *testing.T) {
	p := newWorld().page()
	for path, want := range map[string]string{"/": "text/html; charset=utf-8", "/files": "text/html; charset=utf-8", "/api/v1/status": "application/json", "/api/v1/openapi.json": "application/json", "/?state=x": "text/plain; charset=utf-8"} {
		code := http.StatusOK
		if strings.Contains(path, "=x") {
			code = http.StatusBadRequest
		}
		rec := get(t, p, path, code)
		h := rec.Header()
		if h.Get("Content-Type") != want || !strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none'") || !strings.Contains(h.Get("Content-Security-Policy"), "frame-ancestors 'none'") ||
			h.Get("X-Content-Type-Options") != "nosniff" || h.Get("X-Frame-Options") != "DENY" || h.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s: %v", path, h)
		}
		if want != htmlType {
			continue
		}
		inPage := parse(t, rec.Body.String()).all("style")[0].FirstChild.Data
		if !strings.Contains(h.Get("Content-Security-Policy"), "style-src 'sha256-"+hashOf(inPage)+"'") {
			t.Errorf("%s: the policy does not allow the style of the page", path)
		}
	}
	mux := http.NewServeMux()
	p.AddTo(mux)
	mux.Handle("/", http.NotFoundHandler()) // as the handler of metrics has
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions} {
		rec := httptest.NewRecorder()
		if mux.ServeHTTP(rec, httptest.NewRequest(method, "/", nil)); rec.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, rec.Code)
		}
	}
	rec := httptest.NewRecorder()
	if mux.ServeHTTP(rec, httptest.NewRequest(http.MethodHead, "/", nil)); rec.Code != http.StatusOK || rec.Body.Len() > 0 {
		t.Errorf("HEAD: %d, %d bytes", rec.Code, rec.Body.Len())
	}
}

const htmlType = "text/html; charset=utf-8"

func TestQuestions(t *testing.T) {
	w := newWorld()
	for i := range 120 {
		w.add(fmt.Sprintf("svc-%03d", i), nil, policytest.Endpoints(fmt.Sprintf("10.0.1.%d", i)), func(svc *source.Service) {
			svc.Labels = map[string]string{"team": []string{"a", "b"}[i%2]}
			if i >= 100 {
				svc.Namespace, svc.Description = "prod", "Checkout"
			}
		})
	}
	p := w.page()
	for _, tt := range []struct {
		query string
		found int
		first string // first service on the page
	}{
		{"", 120, "default/svc-000"},
		{"?page=2", 120, "default/svc-050"},
		{"?page=3", 120, "prod/svc-100"},
		{"?page=99", 120, "prod/svc-100"},
		{"?namespace=prod", 20, "prod/svc-100"},
		{"?service=svc-01*", 10, "default/svc-010"},
		{"?service=team=b&page=2", 60, "prod/svc-101"},
		{"?q=checkOUT", 20, "prod/svc-100"},
		{"?q=team%3Da", 60, "default/svc-000"},
		{"?q=10.0.1.7", 1, "default/svc-007"},
		{"?state=balance&namespace=prod", 20, "prod/svc-100"},
		{"?state=down", 0, ""},
	} {
		d := parse(t, get(t, p, "/"+tt.query, http.StatusOK).Body.String())
		d.safe(t)
		first := ""
		if list := d.all("h3"); len(list) > perPage {
			t.Errorf("%q: %d services on a page", tt.query, len(list))
		} else if len(list) > 0 {
			first = textOf(list[0])
		}
		if !strings.HasPrefix(first, tt.first) || !strings.Contains(textOf(d.Node), fmt.Sprintf(" %d found.", tt.found)) {
			t.Errorf("%q: the first is %q, want %q of %d", tt.query, first, tt.first, tt.found)
		}
	}
	for query, want := range map[string]string{
		"?stat=down":                     `unknown key "stat"; want namespace, service, state, q, page or refresh`,
		"?state=dwn":                     `unknown state "dwn"; want trouble, `,
		"?state=%zz":                     `the query string cannot be read: invalid URL escape "%zz"`,
		"?state=down;page=2":             `the query string cannot be read: invalid semicolon separator in query`,
		"?page=0":                        `page is "0"; want a number from 1 to 1000000`,
		"?page=1&page=2":                 `"page" is there 2 times`,
		"?service=%5B":                   `is no name or pattern of services`,
		"?q=" + strings.Repeat("x", 300): `q has 300 bytes; want 253 at most`,
	} {
		if body := get(t, p, "/"+query, http.StatusBadRequest).Body.String(); !strings.Contains(body, want) {
			t.Errorf("%.30q: %s", query, body)
		}
	}
}

// The parts of /api/v1/services have all services, none twice.
func TestServicesInParts(t *testing.T) {
	w := newWorld()
	for i := range 25 {
		w.add(fmt.Sprintf("svc-%02d", i), nil, policytest.Endpoints("10.0.0.1"))
	}
	p := w.page()
	var names []string
	for next, asked := "/api/v1/services?limit=10&q=svc", 0; next != ""; asked++ {
		body := get(t, p, next, http.StatusOK).Body.Bytes()
		newChecker(t).is(t, "/api/v1/services", body)
		var part servicePage
		fatal.If(t, json.Unmarshal(body, &part))
		for _, s := range part.Services {
			names = append(names, s.Name)
		}
		if next = part.Next; part.Found != 25 || asked > 3 {
			t.Fatalf("part %d: found %d, next %q", asked, part.Found, next)
		}
	}
	if len(names) != 25 || !slices.IsSorted(names) || len(slices.Compact(names)) != 25 {
		t.Errorf("%q", names)
	}
}

// Answers are compressed once, for clients that accept gzip.
func TestCompressed(t *testing.T) {
	w := newWorld()
	w.add("web", nil, policytest.Endpoints("10.0.0.1"))
	p := w.page()
	mux := http.NewServeMux()
	p.AddTo(mux)
	text := get(t, p, "/api/v1/services", http.StatusOK).Body.String()
	r := httptest.NewRequest(http.MethodGet, "/api/v1/services", nil)
	r.Header.Set("Accept-Encoding", "br, gzip;q=0.5")
	rec := httptest.NewRecorder()
	mux.ServeHTTP(rec, r)
	z, err := gzip.NewReader(rec.Body)
	fatal.If(t, err)
	body, err := io.ReadAll(z)
	if fatal.If(t, err); rec.Header().Get("Content-Encoding") != "gzip" || string(body) != text {
		t.Errorf("%v\n%s\n%s", rec.Header(), body, text)
	}
	for header, want := range map[string]bool{"": false, "gzip": true, "gzip;q=0": false, "br": false, "*": true, "br;q=1.0, GZIP ; q=0.8": false, "deflate, gzip ; q=0.8": true, "gzip;q=x": false} {
		if got := acceptsGzip(header); got != want {
			t.Errorf("Accept-Encoding %q: %v", header, got)
		}
	}
}

// Facts are gathered once a moment, however many clients there are.
func TestReadersShareAnAnswer(t *testing.T) {
	w := newWorld()
	p := w.page()
	p.facts.Moment = time.Hour // because the test may take longer than a second
	rendered, begun := 0, make(chan struct{})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			a, err := p.answers.get(t.Context(), "same", func(w io.Writer) error {
				rendered++
				<-begun
				_, err := io.WriteString(w, "text")
				return err
			})
			if err != nil || len(a.body) == 0 {
				t.Errorf("%v, %v", a, err)
			}
		})
	}
	close(begun)
	all.Wait()
	if rendered != 1 {
		t.Errorf("rendered %d times", rendered)
	}
	for i := range 3 * maxKept {
		_, err := p.answers.get(t.Context(), fmt.Sprint(i), func(io.Writer) error { return nil })
		fatal.If(t, err)
	}
	if n := len(p.answers.kept); n > maxKept {
		t.Errorf("%d answers are kept", n)
	}
	p.answers.clear()
	for range 5 {
		get(t, p, "/", http.StatusOK)
		get(t, p, "/api/v1/status", http.StatusOK)
	}
	if w.asked != 1 {
		t.Errorf("a summary was asked for %d times", w.asked)
	}
}

// If an answer cannot be rendered, later requests for it do not block.
func TestPanicHoldsUpNobody(t *testing.T) {
	p := newWorld().page()
	func() {
		defer func() { _ = recover() }() // as http.Server does
		_, _ = p.answers.get(t.Context(), "same", func(io.Writer) error { panic("a bug") })
	}()
	soon, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if _, err := p.answers.get(soon, "same", func(io.Writer) error { return nil }); err != nil {
		t.Error(err)
	}
}

// Before any facts are gathered, clients are told to retry later.
func TestNothingIsKnownYet(t *testing.T) {
	w := newWorld()
	p := w.page()
	wait := make(chan struct{})
	defer close(wait)
	summary := p.Summary
	p.Summary = func(ctx context.Context, most int) (control.Summary, []source.Status) {
		<-wait
		return summary(ctx, most)
	}
	p.facts.Find, p.facts.Patience = p.gather, time.Millisecond
	for _, path := range []string{"/", "/files", "/api/v1/status", "/api/v1/files"} {
		if rec := get(t, p, path, http.StatusServiceUnavailable); rec.Header().Get("Retry-After") == "" {
			t.Errorf("%s: %v", path, rec.Header())
		}
	}
}

// A long rendering delays other requests. A request that waits too long gets 503.
func TestBusy(t *testing.T) {
	p := newWorld().page()
	end, err := p.answers.budget.begin(t.Context())
	fatal.If(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.answers.budget.begin(ctx); !errors.Is(err, errBusy) {
		t.Error(err)
	}
	end()
	p.answers.budget.time.ReserveN(time.Now(), budgetBurst)
	p.answers.budget.time.ReserveN(time.Now(), budgetBurst) // 10 s of rendering ahead
	soon, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := p.answers.budget.begin(soon); !errors.Is(err, errBusy) {
		t.Error(err)
	}
}

// A batch has few large services, or many small ones.
func TestBatches(t *testing.T) {
	w := newWorld()
	var keys []source.Key
	for i := range 5 {
		name := fmt.Sprint("svc-", i)
		w.add(name, nil, func(s *source.Service) {
			if i < 3 {
				s.Endpoints = make([]source.Endpoint, batchSize*2/3)
			}
		})
		keys = append(keys, source.Key{Namespace: "default", Name: name})
	}
	var got []string
	for list := range inBatches(w.Snapshot, keys) {
		names := ""
		for _, s := range list {
			names += s.Name
		}
		got = append(got, names)
	}
	if want := []string{"svc-0", "svc-1", "svc-2svc-3svc-4"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Every part of a service that is kept and shown is bounded.
func TestLargeServices(t *testing.T) {
	w := newWorld()
	var addrs []string
	for i := range 200 {
		addrs = append(addrs, fmt.Sprint("10.0.0.", i+1))
	}
	edit := func(s *source.Service) {
		s.VIPs, s.Announce = nil, source.BGP
		for i := range 200 {
			s.VIPs = append(s.VIPs, netip.AddrFrom4([4]byte{10, 96, 1, byte(i)}))
		}
	}
	failed := make([]string, len(addrs))
	for i, a := range addrs {
		failed[i] = a + " failed"
	}
	for _, name := range []string{"a", "b"} {
		w.add(name, policytest.Conditions(failed...), policytest.Probed, policytest.Endpoints(addrs...), edit)
	}
	p := w.page()
	if f := p.gather(); len(f.down) != maxProblems {
		t.Errorf("%d endpoints that are down are kept", len(f.down))
	}
	body := get(t, p, "/?service=*", http.StatusOK).Body.String()
	list, _, _ := strings.Cut(body[strings.Index(body, `id="list"`):], "<h2>")
	if n := strings.Count(list, " by bgp: "); n != 2*maxRows || strings.Count(list, "and 188 more addresses to announce") != 2 {
		t.Errorf("%d addresses to announce of 2 services", n)
	}
}
