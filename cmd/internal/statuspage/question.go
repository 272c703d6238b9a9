package statuspage

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// A question is a parsed query string.
type question struct {
	Namespace string
	Services  source.Selection // names or patterns, as svcproxy status takes them
	State     string           // of report.FilterStates; empty: any
	Text      string           // in lower case: part of a name, description, label or file, or an address
	address   netip.Addr       // Text as an address; invalid if it is not one

	Page    int // from 1
	Refresh int // seconds until a browser reloads the page; 0: never

	After source.Key // JSON only: services after this one
	Limit int        // JSON only: maximum number of services
}

const (
	defaultRefresh = 15 // seconds
	maxRefresh     = 3600

	defaultLimit = 1_000
	maxLimit     = 10_000

	maxWord     = 253 // bytes of a value of a query
	maxPatterns = 16
	maxPage     = 1_000_000
)

// pageKeys and serviceKeys are the query keys of the pages and of /api/v1/services.
var (
	pageKeys    = []string{"namespace", "service", "state", "q", "page", "refresh"}
	serviceKeys = []string{"namespace", "service", "state", "q", "after", "limit"}
)

// questionOf parses a query string that may have these keys. The error says what to write instead.
func questionOf(text string, keys []string) (q question, err error) {
	query, err := parseQuery(text)
	if err != nil {
		return q, err
	}
	for key, values := range query {
		if !slices.Contains(keys, key) {
			return q, fmt.Errorf("unknown key %s; want %s", source.Excerpt(key), source.Either(keys))
		}
		if len(values) > 1 && key != "service" || len(values) > maxPatterns {
			return q, fmt.Errorf("%s is there %d times; write it once, or service up to %d times", source.Excerpt(key), len(values), maxPatterns)
		}
		for _, v := range values {
			if len(v) > maxWord {
				return q, fmt.Errorf("%s has %d bytes; want %d at most", key, len(v), maxWord)
			}
		}
	}
	q.Namespace, q.State = query.Get("namespace"), query.Get("state")
	q.Text = strings.ToLower(strings.TrimSpace(query.Get("q")))
	q.address, _ = netip.ParseAddr(q.Text)
	q.Services = slices.DeleteFunc(slices.Clone(query["service"]), func(s string) bool { return s == "" }) // a field left empty
	if err := q.Services.Check(); err != nil {
		return q, err
	}
	if states := report.FilterStates(); q.State != "" && !slices.Contains(states, q.State) {
		return q, fmt.Errorf("unknown state %s; want %s", source.Excerpt(q.State), source.Either(states))
	}
	if after := query.Get("after"); after != "" {
		namespace, name, ok := strings.Cut(after, "/")
		if !ok {
			return q, fmt.Errorf("after is %s; want NAMESPACE/NAME of a service", source.Excerpt(after))
		}
		q.After = source.Key{Namespace: namespace, Name: name}
	}
	for _, n := range []struct {
		key                   string
		to                    *int
		least, standard, most int
	}{
		{"page", &q.Page, 1, 1, maxPage},
		{"refresh", &q.Refresh, 0, defaultRefresh, maxRefresh},
		{"limit", &q.Limit, 1, defaultLimit, maxLimit},
	} {
		if err := number(query.Get(n.key), n.key, n.to, n.least, n.standard, n.most); err != nil {
			return q, err
		}
	}
	return q, nil
}

// parseQuery parses a query string. Unlike http.Request, it returns an error instead of ignoring invalid parts.
func parseQuery(text string) (url.Values, error) {
	query, err := url.ParseQuery(text)
	if err != nil {
		return nil, fmt.Errorf("the query string cannot be read: %w", err)
	}
	return query, nil
}

func number(text, key string, to *int, least, standard, most int) (err error) {
	if *to = standard; text == "" {
		return nil
	}
	if *to, err = strconv.Atoi(text); err != nil || *to < least || *to > most {
		return fmt.Errorf("%s is %s; want a number from %d to %d", key, source.Excerpt(text), least, most)
	}
	return nil
}

// filter returns a filter for the matching services.
func (q *question) filter() report.Filter {
	f := report.Filter{State: q.State}
	if q.Namespace != "" || len(q.Services) > 0 || q.Text != "" {
		f.Match = q.matches
	}
	return f
}

// matches reports whether a service matches, regardless of its state.
func (q *question) matches(s *source.Service) bool {
	switch {
	case q.Namespace != "" && s.Namespace != q.Namespace, !q.Services.Matches(s.Key, s.Labels):
		return false
	case q.Text == "":
		return true
	case q.address.IsValid():
		return q.has(s)
	}
	return contains(s.Key.String(), q.Text) || contains(s.Description, q.Text) || contains(s.Pos.File, q.Text) || q.inLabels(s.Labels)
}

// has reports whether a service or one of its endpoints has the requested address.
func (q *question) has(s *source.Service) bool {
	a := q.address.Unmap()
	for _, list := range [][]netip.Addr{s.VIPs, s.ExternalIPs, s.LoadBalancerIPs} {
		if slices.Contains(list, a) {
			return true
		}
	}
	return slices.ContainsFunc(s.Endpoints, func(e source.Endpoint) bool { return e.Addr == a })
}

func (q *question) inLabels(labels map[string]string) bool {
	for key, value := range labels {
		if contains(key+"="+value, q.Text) {
			return true
		}
	}
	return false
}

// contains reports whether a text contains part, ignoring case. part must be in lower case.
func contains(text, part string) bool { return strings.Contains(strings.ToLower(text), part) }

// link returns the path of a page with the question as query string, without values that are the default.
func (q question) link(path string) string {
	v := url.Values{}
	set := func(key, value, standard string) {
		if value != standard {
			v.Set(key, value)
		}
	}
	set("namespace", q.Namespace, "")
	set("state", q.State, "")
	set("q", q.Text, "")
	set("page", strconv.Itoa(q.Page), "1")
	set("refresh", strconv.Itoa(q.Refresh), strconv.Itoa(defaultRefresh))
	if len(q.Services) > 0 {
		v["service"] = q.Services
	}
	if len(v) == 0 {
		return path
	}
	return path + "?" + v.Encode()
}
