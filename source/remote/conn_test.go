package remote

import (
	"bytes"
	"errors"
	"log/slog"
	"net/url"
	"strings"
	"testing"
)

// The log says once that the server went, why, and that it is back.
func TestConnectionIsLoggedOnce(t *testing.T) {
	var text bytes.Buffer
	c := NewState("", slog.New(slog.NewTextHandler(&text, nil)), 3)
	refused := errors.New("connection refused")
	watchAll := func() {
		for part := range 3 {
			c.Watching(part)
		}
	}
	watchAll()
	for _, path := range []string{"/services", "/nodes", "/services"} {
		c.Fail(0, &url.Error{Op: "Get", URL: path, Err: refused})
		c.Fail(2, &url.Error{Op: "Get", URL: path, Err: refused})
	}
	gone := c.Connection()
	if gone.Connected || gone.Error != "connection refused" {
		t.Errorf("status %+v", gone)
	}
	c.Watching(0)
	if c.Connection() != gone {
		t.Errorf("connected while a part is not watched: %+v", c.Connection())
	}
	watchAll()
	if now := c.Connection(); !now.Connected || now.Error != "" || !now.Since.After(gone.Since) {
		t.Errorf("status %+v", now)
	}
	c.Fail(AllParts, errors.New("x509"))
	c.Fail(AllParts, errors.New("Unauthorized"))
	if lines := strings.Count(text.String(), "\n"); lines != 5 {
		t.Errorf("%d lines, want 5:\n%s", lines, text.String())
	}
}
