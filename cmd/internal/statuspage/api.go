package statuspage

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"

	"svcproxy.dev/svcproxy/proxier/report"
	"svcproxy.dev/svcproxy/source"
)

// maxEndpoints is the number of endpoints and addresses at which an answer ends. Its last service may exceed it.
const maxEndpoints = 100_000

// apiStatus answers with a control.Summary, like svcproxy status --problems -o json.
func (p *Page) apiStatus(r *http.Request) (kind, func(io.Writer) error, error) {
	_, err := questionOf(r.URL.RawQuery, nil)
	return jsonText, func(w io.Writer) error {
		f, _, err := p.known()
		if err != nil {
			return err
		}
		return json.NewEncoder(w).Encode(f.summary)
	}, err
}

// apiFiles answers with the status of all sources, as in svcproxy status -o json.
func (p *Page) apiFiles(r *http.Request) (kind, func(io.Writer) error, error) {
	_, err := questionOf(r.URL.RawQuery, nil)
	return jsonText, func(w io.Writer) error {
		f, _, err := p.known()
		if err != nil {
			return err
		}
		return json.NewEncoder(w).Encode(f.sources)
	}, err
}

// A servicePage is a part of the services that match a question.
type servicePage struct {
	Services []report.ServiceStatus `json:"services"`
	Next     string                 `json:"next,omitempty"` // path of the next part; empty: this is the last one
	Found    int                    `json:"found"`          // how many services match, in all parts together
}

// apiServices answers with services, each as in svcproxy status -o json.
func (p *Page) apiServices(r *http.Request) (kind, func(io.Writer) error, error) {
	q, err := questionOf(r.URL.RawQuery, serviceKeys)
	return jsonText, func(w io.Writer) error { return p.writeServices(r, q, w) }, err
}

// writeServices writes a servicePage, a batch at a time.
func (p *Page) writeServices(r *http.Request, q question, w io.Writer) error {
	s := p.Snapshot()
	keys := report.Find(s, q.filter())
	found := len(keys)
	from, exact := slices.BinarySearchFunc(keys, q.After, source.Key.Compare)
	if exact {
		from++
	}
	rest := keys[from:]
	if _, err := io.WriteString(w, `{"services":[`); err != nil {
		return err
	}
	written, size := 0, 0
	for list := range inBatches(s, rest[:min(q.Limit, len(rest))]) {
		p.AddTraffic(context.WithoutCancel(r.Context()), list)
		for i := range list {
			if err := writeService(w, &list[i], written > 0); err != nil {
				return err
			}
			written++
			if size += len(list[i].Endpoints) + len(list[i].Frontends); size >= maxEndpoints {
				break
			}
		}
		if size >= maxEndpoints {
			break
		}
	}
	next := ""
	if written > 0 && written < len(rest) {
		query := r.URL.Query()
		query.Set("after", rest[written-1].String())
		next = (&url.URL{Path: r.URL.Path, RawQuery: query.Encode()}).String()
	}
	text, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("writing where the next services are: %w", err)
	}
	_, err = fmt.Fprintf(w, "],\"next\":%s,\"found\":%d}\n", text, found)
	return err
}

func writeService(w io.Writer, s *report.ServiceStatus, further bool) error {
	if further {
		if _, err := io.WriteString(w, ","); err != nil {
			return err
		}
	}
	return json.NewEncoder(w).Encode(s)
}
