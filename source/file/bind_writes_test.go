package file

import (
	"os"
	"testing"
	"time"
)

// Every way to write a list. Only events can tell: the poll is an hour.
func TestWaysToWriteLists(t *testing.T) {
	one, two := `["10.1.0.1"]`, `["10.1.0.1", "10.1.0.2"]`
	const name = "/web.endpoints.json"
	tests := map[string]struct{ prepare, change func(t *testing.T, d string) }{
		"in place": {nil, func(t *testing.T, d string) { write(t, d+name, two) }},
		"in pieces": {nil, func(t *testing.T, d string) {
			f, err := os.Create(d + name)
			check(t, err)
			defer f.Close()
			for _, piece := range []string{"[", `"10.1.0.1"`, ",\n", `"10.1.0.2"`, "]"} {
				time.Sleep(20 * time.Millisecond)
				_, err := f.WriteString(piece)
				check(t, err)
			}
		}},
		"renamed over": {nil, func(t *testing.T, d string) {
			write(t, d+name+".tmp", two)
			check(t, os.Rename(d+name+".tmp", d+name))
		}},
		"removed, and written later": {nil, func(t *testing.T, d string) {
			check(t, os.Remove(d+name))
			time.Sleep(2 * goneTime)
			write(t, d+name, two)
		}},
		"symlink swapped": {
			func(t *testing.T, d string) {
				write(t, d+"/.1", one)
				check(t, os.Remove(d+name))
				check(t, os.Symlink(".1", d+name))
			},
			func(t *testing.T, d string) {
				write(t, d+"/.2", two)
				check(t, os.Symlink(".2", d+"/.new"))
				check(t, os.Rename(d+"/.new", d+name))
			},
		},
		"target of a symlink replaced": {
			func(t *testing.T, d string) {
				check(t, os.Mkdir(d+"/../aside", 0o755))
				write(t, d+"/../aside/list", one)
				check(t, os.Remove(d+name))
				check(t, os.Symlink("../aside/list", d+name))
			},
			func(t *testing.T, d string) {
				write(t, d+"/../aside/new", two)
				check(t, os.Rename(d+"/../aside/new", d+"/../aside/list"))
			},
		},
		"ConfigMap": {
			func(t *testing.T, d string) {
				check(t, os.Remove(d+name))
				configMap(t, d, "..1", map[string]string{"web.endpoints.json": one})
				check(t, os.Symlink("..data"+name, d+name))
			},
			func(t *testing.T, d string) {
				configMap(t, d, "..2", map[string]string{"web.endpoints.json": two})
			},
		},
		"directory removed and made again": {nil, func(t *testing.T, d string) {
			check(t, os.RemoveAll(d))
			check(t, os.Mkdir(d, 0o755))
			write(t, d+name, two)
			write(t, d+"/web.toml", serviceFrom("web", fromList))
		}},
	}
	for how, tt := range tests {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			d := t.TempDir() + "/etc"
			check(t, os.Mkdir(d, 0o755))
			write(t, d+"/web.toml", serviceFrom("web", fromList))
			write(t, d+name, one)
			if tt.prepare != nil {
				tt.prepare(t, d)
			}
			f := &fixture{T: t, dir: d, sink: newRecorder(t, d), src: New(Options{Dir: d, Poll: time.Hour})}
			f.run()
			f.awaitSynced()
			f.sink.await("at first", "web.toml: web 1")
			tt.change(t, d)
			f.sink.await("after the change", "web.toml: web 2")
		})
	}
}
