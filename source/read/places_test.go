package read

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"svcproxy.dev/svcproxy/internal/fatal"
	"svcproxy.dev/svcproxy/source"
)

func TestEndpointPlaces(t *testing.T) {
	dir := t.TempDir()
	head := "[[services]]\nname = \"a\"\nvips = [\"10.96.0.1\"]\nports = [{ port = 80 }]\nendpoints = [\"10.0.0.1\",\n"
	text := head + "  { address = \"10.0.0.2\", weight = 0 }]\n"
	write(t, dir+"/a.toml", text)
	f := Rules{}.ReadFile(dir + "/a.toml")
	if len(f.Services) != 1 {
		t.Fatal(f.Faults)
	}
	at := func(line, col int) source.Position {
		return source.Position{File: dir + "/a.toml", Line: line, Col: col}
	}
	if diff := cmp.Diff([]source.Position{at(5, 14), at(6, 3)}, Rules{}.EndpointPlaces(f.Services[0])); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	write(t, dir+"/a.toml", head+"\"10.0.0.3\"]\n")
	if got := (Rules{}).EndpointPlaces(f.Services[0]); got != nil {
		t.Errorf("of a service that has changed: %v", got)
	}
	write(t, dir+"/a.json", `{"services":[{"name":"b","vips":["10.96.0.2"],"ports":[{"port":80}],"endpoints":["10.0.0.1"]}]}`)
	b := Rules{}.ReadFile(dir + "/a.json").Services[0]
	if got := (Rules{}).EndpointPlaces(b); len(got) != 1 || got[0].Col != 82 {
		t.Errorf("in JSON: %v", got)
	}
}

// The name of a text of a server is no path of this host, whatever is in the working directory.
func TestEndpointPlacesOfText(t *testing.T) {
	const url = "https://h/a.toml"
	text := []byte("[[services]]\nname = \"a\"\nvips = [\"10.96.0.1\"]\nports = [{ port = 80 }]\nendpoints = [\"10.0.0.1\"]\n")
	services, faults := Rules{From: Origin{URL: url}}.Parse(url, text)
	if len(services) != 1 {
		t.Fatal(faults)
	}
	t.Chdir(t.TempDir())
	fatal.If(t, os.MkdirAll("https:/h", 0o700))
	write(t, "https:/h/a.toml", string(text))
	if got := (Rules{}).EndpointPlaces(services[0]); got != nil {
		t.Errorf("read a file of this host: %v", got)
	}
}
