package cli

import (
	"context"
	"errors"

	"github.com/apithrottle/throttle/cmd/throttle/internal/pgurl"
	"github.com/apithrottle/throttle/postgres"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
)

const postgresExits = `Exit codes: 64 bad usage, 69 the server cannot be used.`

func (c *command) postgres() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "postgres schema|migrate [FLAG...]",
		Short: "Create the table that keeps quotas in PostgreSQL",
		Long: `Create the table that keeps quotas in PostgreSQL. migrate creates it, if its role may
create tables in the schema. schema writes the SQL for those who run it themselves.

The commands that use the table need only USAGE on the schema, and SELECT, INSERT,
UPDATE and DELETE on the table.

` + postgresExits,
		Example: `  throttle postgres migrate --store postgres://owner@localhost/app
  throttle postgres schema --table limits.quota | psql postgres://owner@localhost/app`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("postgres does not know %q: it has schema and migrate", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, verb := range []*cobra.Command{c.postgresSchema(), c.postgresMigrate()} {
		verb.DisableFlagsInUseLine = true
		cmd.AddCommand(verb)
		c.completeFlags(verb)
	}
	return cmd
}

func (c *command) postgresSchema() *cobra.Command {
	var table string
	cmd := &cobra.Command{
		Use:     "schema [--table NAME]",
		Short:   "Write the SQL that creates the table",
		Long:    "Write the SQL that creates the table. It may run again.\n\n" + postgresExits,
		Example: `  throttle postgres schema | psql postgres://owner@localhost/app`,
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			sql, err := postgres.Schema(postgres.Options{Table: table})
			if err != nil {
				return usagef("--table is %q: it must be the name of a table, or schema.table", table)
			}
			return c.print(map[string]string{"sql": sql}, func() string { return sql })
		},
	}
	cmd.Flags().StringVar(&table, "table", "", "the `name` of the table, or schema.table (default throttle_quota)")
	return cmd
}

func (c *command) postgresMigrate() *cobra.Command {
	var url string
	cmd := &cobra.Command{
		Use:   "migrate --store URL",
		Short: "Create the table if it is missing",
		Long: `Create the table that keeps quotas if it is missing. Processes may use it meanwhile.
The parameter table of the URL names it, as in ?table=limits.quota.

` + postgresExits,
		Example: `  throttle postgres migrate --store postgres://owner@localhost/app`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !pgurl.Is(url) {
				return usagef("migrate needs --store: the URL of a PostgreSQL database, such as postgres://owner@localhost/app")
			}
			in, err := (&storeFlags{url: url}).place()
			if err != nil {
				return err
			}
			if err := in.migrate(cmd.Context()); err != nil {
				return in.error(err)
			}
			return c.print(map[string]bool{"ok": true}, func() string { return in.where() + " has the table\n" })
		},
	}
	cmd.Flags().StringVar(&url, "store", "", "the `URL` of the database")
	return cmd
}

// migrate creates the table of PostgreSQL.
func (p *place) migrate(ctx context.Context) error {
	of, o, err := pgurl.Parse(p.Postgres.Reveal())
	if err != nil {
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, of)
	if err != nil {
		return err
	}
	defer pool.Close()
	return postgres.Migrate(ctx, pool, o)
}

// noTable is the code of an error about a table that does not exist.
// https://www.postgresql.org/docs/15/errcodes-appendix.html, read 2026-11-28
const noTable = "42P01"

// missing returns the error of PostgreSQL, or if the table is missing, one that says how to create it.
func (p *place) missing(err error) error {
	var of *pgconn.PgError
	if !errors.As(err, &of) || of.Code != noTable {
		return err
	}
	return errors.New("the table of quotas is missing: create it by throttle postgres migrate --store URL, or throttle postgres schema | psql URL")
}
