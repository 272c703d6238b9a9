//go:build !nokubernetes

package kubernetes

import (
	"bytes"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"
)

// The log says once that the server went, why, and that it is back.
func TestContactIsLoggedOnce(t *testing.T) {
	var text bytes.Buffer
	c := newContact(slog.New(slog.NewTextHandler(&text, nil)))
	refused := errors.New("connection refused")
	watchAll := func() {
		for k := range kinds {
			c.watch(kind(k))
		}
	}
	watchAll()
	for _, path := range []string{"/services", "/nodes", "/services"} {
		c.fail(services, &url.Error{Op: "Get", URL: path, Err: refused})
		c.fail(nodes, &url.Error{Op: "Get", URL: path, Err: refused})
	}
	gone := c.status()
	if gone.Connected || gone.Error != "connection refused" {
		t.Errorf("status %+v", gone)
	}
	c.watch(services)
	if c.status() != gone {
		t.Errorf("connected while nodes are not watched: %+v", c.status())
	}
	watchAll()
	if now := c.status(); !now.Connected || now.Error != "" || !now.Since.After(gone.Since) {
		t.Errorf("status %+v", now)
	}
	c.fail(-1, errors.New("x509"))
	c.fail(-1, errors.New("Unauthorized"))
	if lines := strings.Count(text.String(), "\n"); lines != 5 {
		t.Errorf("%d lines, want 5:\n%s", lines, text.String())
	}
}
