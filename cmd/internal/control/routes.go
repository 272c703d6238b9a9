package control

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
)

// maxQuestion is how long the body of a question may be, in bytes.
const maxQuestion = 1 << 20

// Routes are what a Server answers. Get and Post add to them.
type Routes struct{ mux http.ServeMux }

// Get has GET path answered with what answer returns, as JSON. Its error is told to the client.
func Get[A any](r *Routes, path string, answer func(context.Context, url.Values) (A, error)) {
	r.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, req *http.Request) {
		a, err := answer(req.Context(), req.URL.Query())
		reply(w, req, a, err)
	})
}

// Post has POST path answered in the same way, to those who may change what the daemon
// does (Peer.mayChange). The body is a Q in JSON, at most 1 MiB of it.
func Post[Q, A any](r *Routes, path string, answer func(context.Context, Peer, Q) (A, error)) {
	r.mux.HandleFunc("POST "+path, func(w http.ResponseWriter, req *http.Request) {
		var q Q
		peer, _ := req.Context().Value(peerKey{}).(Peer)
		if err := peer.mayChange(); err != nil {
			answerWith(w, http.StatusForbidden, failure(err))
			return
		}
		if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, maxQuestion)).Decode(&q); err != nil {
			reply(w, req, nil, fmt.Errorf("reading the question: %w", err))
			return
		}
		a, err := answer(req.Context(), peer, q)
		reply(w, req, a, err)
	})
}

// reply writes an answer or an error. An error of a daemon that ends says nothing about the
// question: its status is another.
func reply(w http.ResponseWriter, req *http.Request, answer any, err error) {
	switch {
	case err == nil:
		answerWith(w, http.StatusOK, answer)
	case req.Context().Err() != nil:
		answerWith(w, http.StatusServiceUnavailable, failure(err))
	default:
		answerWith(w, http.StatusUnprocessableEntity, failure(err))
	}
}

// failure is an error on its way to the client.
func failure(err error) map[string]string { return map[string]string{"error": err.Error()} }

// answerWith writes an answer. The client may be gone; there is nobody else to tell.
func answerWith(w http.ResponseWriter, code int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer)
}
