package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"svcproxy.dev/svcproxy/cmd/internal/convert"
	"svcproxy.dev/svcproxy/cmd/internal/convert/reader"
	"svcproxy.dev/svcproxy/cmd/internal/node"
	"svcproxy.dev/svcproxy/configs"
	"svcproxy.dev/svcproxy/source"
	"svcproxy.dev/svcproxy/source/read"
)

func convertCommand(p *program) *cobra.Command {
	var flags configs.Flags
	var id string
	var formats strings.Builder
	for _, f := range convert.Formats {
		fmt.Fprintf(&formats, "  %-11s %s\n", f.Name, f.Of)
	}
	cmd := &cobra.Command{
		Use:   "convert " + strings.Join(convert.Names(), "|") + " [FILE | -]",
		Short: "Print a service file for what another program has",
		Long: `Convert reads what another program has of services and prints a service file for
svcproxy. It changes nothing, of the other program neither. FILE is:

` + formats.String() + `
Without FILE, or with "-", it is standard input.

What cannot be carried over is a comment beside the service, and a line on standard
error: FILE:LINE: what, and what to do. What is printed passes svcproxy check with the
settings of the configuration directory: a service that would be refused, or that has
an address and port of one before it, is printed as a comment with the fault. What
the mode cannot do is left out where it can be; --mode says which one is meant.

At most 16 MiB are read, with all files that FILE includes. Nothing is looked up by
name: addresses are literal.

Exit codes: 0 services were found and printed, also where lines were written to
standard error; 1 FILE cannot be understood, has no service with an endpoint, or keeps
sources out of a service in a way that the service does not; 2 wrong usage; 3 a file
could not be read. Where no service was found only comments are printed.`,
		Example: `  ipvsadm -Sn | svcproxy convert ipvsadm > web.toml
  svcproxy convert keepalived --mode ipvs /etc/keepalived/keepalived.conf > web.toml`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			format, err := convert.Named(args[0])
			if err != nil {
				return p.usage(err)
			}
			in, err := readInput(cmd.InOrStdin(), append(args, "-")[1])
			if err != nil {
				return unreachable(fmt.Errorf("reading what to convert: %w", err))
			}
			if in.ID = id; !cmd.Flags().Changed("config-id") {
				name, err := os.Hostname()
				if err != nil {
					return unreachable(fmt.Errorf("reading the host name, which --config-id stands for: %w", err))
				}
				in.ID, _, _ = strings.Cut(name, ".")
			}
			return p.convert(format, in, &flags)
		},
	}
	cmd.Flags().StringVar(&id, "config-id", "", "of keepalived: lines that begin with @ID are of this host; default: the host name up to its first dot")
	flags.Bind(cmd.Flags(), "mode")
	return cmd
}

// readInput reads a file, or standard input, up to a byte more than can be converted.
func readInput(stdin io.Reader, path string) (in reader.Input, err error) {
	if in.Name = reader.Stdin; path != "-" {
		info, err := os.Stat(path)
		if err == nil && info.IsDir() {
			return in, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("it is a directory")}
		}
		f, err := os.Open(path) // a pipe too: <(ipvsadm -Sn)
		if err != nil {
			return in, err
		}
		defer f.Close()
		in.Name, stdin = path, f
	}
	in.Data, err = io.ReadAll(io.LimitReader(stdin, reader.MaxSize+1))
	return in, err
}

// convert prints the service file, and what is not in it.
func (p *program) convert(format convert.Format, in reader.Input, flags *configs.Flags) error {
	settings, err := p.settings(flags)
	if err != nil {
		return err
	}
	written, _, unread := load(filepath.Join(p.dirs.config, read.SettingsName), &configs.Flags{}) // whatever the flags say
	if unread != nil {
		written.Mode = ""
	}
	debug.SetGCPercent(30) // inputs are held in several forms: 20,000 services take 143 MB in place of 161, for a tenth more processor time
	read, err := format.Read(in)
	if err != nil {
		return fmt.Errorf("converting: %w", err)
	}
	in.Data = nil // it may be large
	judge := convert.Judge{Rules: p.checker(flags).Rules(settings), Mode: settings.Mode, Written: written.Mode, Reserved: node.Reserved(settings)}
	d, err := judge.Document(read, "Of "+source.Quote(in.Name)+", by svcproxy convert "+format.Name+".")
	if err != nil {
		return err
	}
	for _, n := range d.Notes {
		if _, err := fmt.Fprintln(p.stderr, n); err != nil {
			return err
		}
	}
	if _, err := p.stdout.Write(d.TOML); err != nil {
		return fmt.Errorf("printing the service file: %w", err)
	}
	switch {
	case d.Services == 0:
		return fmt.Errorf("%s: no service that can be used was found", source.Quote(in.Name))
	case len(d.Opened) > 0:
		return fmt.Errorf("%s: open to all sources now: %s", source.Quote(in.Name), strings.Join(d.Opened, ", "))
	}
	return nil
}
