package statuspage

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/proxier/policy/policytest"
)

// BenchmarkAnswers measures the cost of an answer with 10,000 services, including facts. Each answer is rendered at most once a
// second.
func BenchmarkAnswers(b *testing.B) {
	w := newWorld()
	for i := range 10_000 {
		w.add(fmt.Sprintf("svc-%d", i), nil, policytest.Endpoints(fmt.Sprintf("10.1.%d.%d", i/250, i%250), fmt.Sprintf("10.2.%d.%d", i/250, i%250)))
	}
	p := w.page()
	p.facts.Moment = 0
	for _, tt := range []struct {
		target string
		ask    func(*http.Request) (kind, func(io.Writer) error, error)
	}{
		{"/", p.overview},
		{"/?state=trouble", p.overview},
		{"/?q=10.1.3.7", p.overview},
		{"/api/v1/services?limit=10000", p.apiServices},
	} {
		b.Run(tt.target, func(b *testing.B) {
			for b.Loop() {
				_, render, err := tt.ask(httptest.NewRequest(http.MethodGet, tt.target, nil))
				fatal.If(b, err)
				z, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
				fatal.If(b, render(z))
				fatal.If(b, z.Close())
			}
		})
	}
}
