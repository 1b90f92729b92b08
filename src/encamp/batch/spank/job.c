#include <slurm/slurm.h>

#include "plugin.h"

int name_of_job(uint32_t id, char name[NAME_LIMIT + 1])
{
    job_info_msg_t *found = NULL;

    name[0] = 0;
    if (slurm_load_job(&found, id, 0) != SLURM_SUCCESS || found == NULL)
        return -1;
    for (uint32_t i = 0; i < found->record_count; i++) {
        const slurm_job_info_t *job = &found->job_array[i];

        if (job->job_id == id)
            name_in_comments(job->admin_comment, job->comment, name);
    }
    slurm_free_job_info_msg(found);
    return 0;
}
