package manual

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// around is what no command says of itself.
const around = `
# SIGNALS

SIGHUP
: svcproxy run reads all files again.

SIGTERM, SIGINT
: It stops within a second and leaves the kernel as it is: traffic goes on.

# FILES

/etc/svcproxy/svcproxy.toml
: The settings, svcproxy.toml(5). It is optional, and so is every key.

/etc/svcproxy/\*.toml, \*.json
: The services, svcproxy-service(5).

/var/lib/svcproxy
: What must survive a restart: accepted versions of files, results of health checks, drains.

/run/svcproxy/svcproxy.sock
: The control socket, by which commands ask the daemon.

# SEE ALSO

svcproxy.toml(5), svcproxy-service(5), nft(8), ipvsadm(8), iptables(8)
`

// commandsPage is the page of the program: one section a command.
func commandsPage(root *cobra.Command) page {
	var b strings.Builder
	fmt.Fprintf(&b, "# NAME\nsvcproxy - %s\n\n# SYNOPSIS\n", escape(root.Short))
	for _, c := range commands(root) {
		fmt.Fprintf(&b, "%s\n\n", usage(c))
	}
	fmt.Fprintf(&b, "# DESCRIPTION\n%s\n# OPTIONS OF EVERY COMMAND\n", prose(root.Long))
	flags(&b, root.PersistentFlags())
	b.WriteString("# COMMANDS\n")
	for _, c := range commands(root) {
		command(&b, c)
	}
	return page{"svcproxy", 8, "System Manager's Manual", b.String() + around}
}

// commands returns those that a user sees, in the order of the alphabet, as help does.
func commands(root *cobra.Command) (list []*cobra.Command) {
	for _, c := range root.Commands() {
		if c.IsAvailableCommand() {
			list = append(list, c)
		}
	}
	return list
}

// usage returns a command with its name in bold and its arguments as they are.
func usage(c *cobra.Command) string {
	_, arguments, _ := strings.Cut(c.Use, " ")
	return strings.TrimSpace("**" + escape(c.CommandPath()) + "** " + escape(arguments))
}

func command(b *strings.Builder, c *cobra.Command) {
	fmt.Fprintf(b, "\n## %s\n%s\n", usage(c), prose(cmp.Or(c.Long, c.Short+".")))
	flags(b, c.LocalNonPersistentFlags())
	if c.Example != "" {
		fmt.Fprintf(b, "Examples:\n\n%s\n", code(c.Example))
	}
}

// flags writes a list of flags, each with what it does and what holds without it.
func flags(b *strings.Builder, fs *pflag.FlagSet) {
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" || f.Name == "version" {
			return
		}
		kind, text := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		fmt.Fprintf(b, "**%s**", escape(name))
		if kind != "" {
			fmt.Fprintf(b, " *%s*", escape(kind))
		}
		fmt.Fprintf(b, "\n: %s\n\n", escape(text+standard(f)))
	})
}

// standard says what a flag is where it is not given, if that tells anything.
func standard(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "false", "0", "0s", "[]":
		return ""
	}
	return " (default " + f.DefValue + ")"
}
