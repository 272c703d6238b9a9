//go:build !nokubernetes

package kubernetes

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
)

// A tokenFile sends the token in a file with each request, and reads the file for each: there are few. client-go
// would go on for 50 s with a token that is not accepted any more.
type tokenFile struct {
	path string
	base http.RoundTripper
	last atomic.Value // a string, the token that was read last
}

// RoundTrip implements http.RoundTripper. While the file cannot be read, or is being written, it sends
// the token of before.
func (f *tokenFile) RoundTrip(r *http.Request) (*http.Response, error) {
	text, err := os.ReadFile(f.path)
	if text = bytes.TrimSpace(text); len(text) > 0 {
		f.last.Store(string(text))
	}
	token, ok := f.last.Load().(string)
	switch {
	case !ok && err != nil:
		return nil, fmt.Errorf("reading the token for the API server: %w", err)
	case !ok:
		return nil, fmt.Errorf("reading the token for the API server from %s: the file is empty", f.path)
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	return f.base.RoundTrip(r)
}
