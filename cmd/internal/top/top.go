// Package top shows the traffic of services.
package top

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"

	"svcproxy.dev/svcproxy/proxier/traffic"
	"svcproxy.dev/svcproxy/source"
)

// Path is where the daemon answers with a traffic.Report.
const Path = "/v1/top"

// Values returns q as the daemon takes it.
func Values(q traffic.Query) url.Values {
	v := url.Values{"service": q.Names, "sort": {q.Sort}, "limit": {strconv.Itoa(q.Limit)}}
	if q.Endpoints {
		v.Set("endpoints", "true")
	}
	return v
}

// QueryOf returns the query in v. What is wrong with it, its Check says.
func QueryOf(v url.Values) (traffic.Query, error) {
	q := traffic.Query{Names: v["service"], Endpoints: v.Get("endpoints") == "true", Sort: v.Get("sort")}
	var err error
	if q.Limit, err = strconv.Atoi(cmp.Or(v.Get("limit"), "0")); err != nil {
		return q, fmt.Errorf("the limit is no number: %w", err)
	}
	return q, nil
}

// Write writes r for people. lines is how many there is room for; 0: any number.
func Write(w io.Writer, r *traffic.Report, lines int) error {
	var b strings.Builder
	head(&b, r)
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "SERVICE\tCONN/S\tACTIVE\tCONNS\tPACKETS/S\tBYTES/S\tPACKETS\tBYTES")
	for i := range r.Services {
		s := &r.Services[i]
		row(t, r, s.Namespace+"/"+s.Name, &s.Figures)
		for j := range s.Endpoints {
			e := &s.Endpoints[j]
			name := "  " + e.Address.String()
			if e.Gone {
				name += " (gone)"
			}
			row(t, r, name, &e.Figures)
		}
		if s.More > 0 {
			fmt.Fprintf(t, "  and %d more endpoints\n", s.More)
		}
	}
	if r.More > 0 {
		fmt.Fprintf(t, "and %d more services\n", r.More)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, cut(b.String(), lines))
	return err
}

// head writes what is to be known of the figures.
func head(w io.Writer, r *traffic.Report) {
	fmt.Fprintf(w, "%s, counting for %s", r.Time.Format("15:04:05"), r.Time.Sub(r.Since).Round(1e9))
	if !r.Packets {
		fmt.Fprint(w, "; packets are not counted: net.netfilter.nf_conntrack_acct is 0")
	}
	fmt.Fprintln(w)
	if r.Lost > 0 {
		fmt.Fprintf(w, "connections came faster than they were counted, %d times: there were more\n", r.Lost)
	}
	for _, p := range r.Problems {
		fmt.Fprintln(w, source.Printable(p))
	}
}

// row writes the figures of a service or endpoint. A figure that is not known is a "-".
func row(w io.Writer, r *traffic.Report, name string, f *traffic.Figures) {
	cells := []string{
		source.Printable(name), rate(r, f.ConnectionRate), count(f.Active), count(f.Connections),
		rate(r, f.PacketRate), rate(r, f.ByteRate), count(f.Packets), count(f.Bytes),
	}
	if !r.Packets {
		for i := range cells[4:] {
			cells[4+i] = "-"
		}
	}
	fmt.Fprintln(w, strings.Join(cells, "\t"))
}

func rate(r *traffic.Report, v float64) string {
	switch {
	case r.Over == 0:
		return "-"
	case v > 0 && v < 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return short(v)
}

func count(n uint64) string { return short(float64(n)) }

// short returns a number in five characters at most, as far as "999T".
func short(v float64) string {
	const units = "kMGTPE"
	if v < 10_000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	unit := -1
	for v >= 1_000 && unit < len(units)-1 {
		v /= 1_000
		unit++
	}
	digits := 0
	if v < 10 {
		digits = 1
	}
	return strconv.FormatFloat(v, 'f', digits, 64) + units[unit:unit+1]
}

// cut returns the first lines of text.
func cut(text string, lines int) string {
	if lines <= 0 {
		return text
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		if lines--; lines < 0 {
			break
		}
		b.WriteString(line)
	}
	return b.String()
}
